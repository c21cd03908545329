"""What is known of the human eye and its cortex, one law a file; everything in degrees of visual angle, float64.

    field           degrees and pixels, given the field of view that the image spans
    cortex          millimetres of visual cortex for one degree, and the cortex that sees a disc
    schwartz        the logarithmic map of each half of the field onto cortex, and back
    cones           how densely the receptors of the retina stand
    acuity          the smallest angle that can be told apart
    receptive       how wide a cell of cortex looks, and the spatial frequencies it may hear
    perception      how alike two images are to an eye that looks at one place

Allocators, pictures and the table of `python -m bench.biology` take their numbers from here. docs/biology.md says which
of them are borrowed, and which nobody knows.
"""

from homunculus.biology.acuity import cutoff, minimum_angle
from homunculus.biology.cones import cone_density, cone_limit, cone_spacing
from homunculus.biology.cortex import cortical_area, cortical_share, magnification
from homunculus.biology.field import check_field, pixels_per_degree, to_degrees, to_pixels
from homunculus.biology.perception import acuity_similarity, similarity
from homunculus.biology.receptive import channels, receptive_field
from homunculus.biology.schwartz import from_cortex, to_cortex

__all__ = [
    "acuity_similarity",
    "channels",
    "check_field",
    "cone_density",
    "cone_limit",
    "cone_spacing",
    "cortical_area",
    "cortical_share",
    "cutoff",
    "from_cortex",
    "magnification",
    "minimum_angle",
    "pixels_per_degree",
    "receptive_field",
    "similarity",
    "to_cortex",
    "to_degrees",
    "to_pixels",
]
