"""The words that pages are written in: one set for the ordinary splits, another that only `test-ood` sees.

Surnames, towns and streets are compounds of a beginning and an ending, so that a few lists give thousands of them.
Plain ASCII letters, which every face has.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """Words of one kind to a field; no content word of one vocabulary is in the other."""

    first_names: tuple[str, ...]
    surname_heads: tuple[str, ...]
    surname_tails: tuple[str, ...]
    town_heads: tuple[str, ...]
    town_tails: tuple[str, ...]
    roads: tuple[str, ...]
    countries: tuple[str, ...]
    company_heads: tuple[str, ...]
    company_trades: tuple[str, ...]
    company_forms: tuple[str, ...]
    makes: tuple[str, ...]
    things: tuple[str, ...]
    finishes: tuple[str, ...]
    departments: tuple[str, ...]
    jobs: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    events: tuple[str, ...]
    dishes: tuple[str, ...]
    sides: tuple[str, ...]
    eateries: tuple[str, ...]


def _list(text: str) -> tuple[str, ...]:
    """Texts parted by commas, or words by spaces where there is no comma."""
    return tuple(" ".join(part.split()) for part in text.split(",")) if "," in text else tuple(text.split())


ORDINARY = Vocabulary(
    first_names=_list(
        """Adele Agnes Albert Alice Amara Anders Anna Anton Arthur Astrid Beatrix Benedict Bernard Boris Bruno Camille
        Carla Casper Cecil Celia Chloe Clara Conrad Cyrus Dagmar Daniel Daphne David Delia Denise Dmitri Dora Edgar
        Edith Edwin Elena Elias Elsa Emil Erica Ernest Esther Eva Fabian Felix Fiona Flora Frank Frida Gareth Georg
        Gerald Gilda Gloria Grace Greta Hannah Harold Hazel Hector Helga Henry Hilda Hugo Ibrahim Ida Igor Ines Ingrid
        Irene Isaac Ivan Ivy Jana Jasper Joan Joel Johan Judith Julian Karen Karl Kira Klaus Lara Laura Leo Leonie
        Lionel Lorna Louis Lucia Magnus Marcel Maria Marta Martin Maud Mila Milton Miriam Monica Nadia Naomi Nelson
        Nina Noel Nora Oliver Olga Oscar Otto Pamela Paula Pedro Petra Philip Priya Quentin Rafael Ralph Rita Robert
        Rosa Rupert Ruth Samuel Selma Simon Sofia Stella Sven Sylvia Tamara Tobias Ursula Vera Victor Viola Walter
        Wanda Wilma Yusuf Zelda"""
    ),
    surname_heads=_list(
        """Ash Bar Bec Bel Black Bran Brom Cald Carl Chad Clay Col Cran Dal Dar Dun Ed El Fair Far Fen Fern Gal Gar
        Glen Hal Ham Har Hart Hen Hol Holm Kel Ken King Lam Lang Led Lin Lock Mal Mar Mel Mid Mor Nor North Old Pem
        Pres Rad Ren Rock Ros Rush Sand Sel Shel Stan Stock Sut Thorn Tor Tur Wal War Web Wel West Whit Win Wood"""
    ),
    surname_tails=_list(
        "bourne brook by combe cott croft dale don field ford ham hurst ley man more shaw son stone "
        "sted ster ton wald ward well wick win worth wright"
    ),
    town_heads=_list(
        """Alder Amber Apple Bay Birch Bram Brent Brick Bridge Broad Cedar Chester Cliff Copper Crow Deep Down East
        Elder Elm Fox Frost Gold Grand Green Grey Hawk Heather High Hill Iron Kings Lake Long Maple Marsh Mill Moss
        New Oak Orchard Otter Pine Queens Raven Red River Salt Sea Silver South Spring Stone Summer Swan Upper Vale
        White Wild Willow Winter"""
    ),
    town_tails=_list(
        """bank beck borough bury castle cliffe cross den fell fleet gate grove haven heath holt hythe
        kirk lea mere minster mouth pool port ridge sands side stead stow thorpe view wharf"""
    ),
    roads=_list("Street, Road, Lane, Avenue, Square, Terrace, Crescent, Close, Row, Walk, Drive, Gardens"),
    countries=_list(
        """Austria, Belgium, Bolivia, Canada, Chile, Croatia, Denmark, Egypt, Estonia, Finland, France, Ghana, Greece,
        Iceland, India, Ireland, Italy, Japan, Kenya, Latvia, Mexico, Morocco, Nepal, Norway, Peru, Poland, Portugal,
        Romania, Senegal, Serbia, Spain, Sweden, Turkey, Uruguay, Vietnam"""
    ),
    company_heads=_list(
        """Acorn Albion Alpine Anchor Apex Arrow Atlas Aurora Beacon Bluebell Calder Canal Cobalt Comet Compass
        Coral Crest Crown Delta Dolphin Eagle Echo Ember Falcon Forge Garnet Granite Harbour Harvest Hazelwood Helix
        Heron Horizon Indigo Ivory Juniper Keystone Lantern Laurel Lighthouse Linden Lotus Magnet Meadow Meridian
        Mosaic Nimbus Nordic Oakwood Onyx Orbit Orchid Osprey Pacific Paragon Pegasus Phoenix Pinnacle Pioneer Prism
        Quarry Quartz Rampart Regent Sable Saffron Sapphire Sequoia Sigma Solstice Spectrum Sterling Summit Sundial
        Tempest Terra Topaz Trident Tundra Union Vector Velvet Vertex Vista Vulcan Zenith Zephyr"""
    ),
    company_trades=_list(
        """Analytics, Bakery, Books, Builders, Catering, Ceramics, Chemicals, Clinic, Components, Consulting, Dairy,
        Dental, Design, Electrics, Energy, Engineering, Fabrics, Farms, Foods, Freight, Furniture, Garage, Glass,
        Hardware, Insurance, Joinery, Laboratories, Lighting, Logistics, Machines, Metals, Motors, Networks, Optics,
        Paper, Partners, Pharmacy, Plastics, Press, Printing, Records, Robotics, Roofing, Security, Software, Stores,
        Studios, Supplies, Systems, Telecom, Textiles, Timber, Tools, Toys, Travel, Water"""
    ),
    company_forms=_list("Ltd, GmbH, Inc., & Sons, Group, plc, Co., S.A., B.V., & Daughters, AG, LLC"),
    makes=_list(
        """Bosun Brava Carmel Cirrus Corva Delft Dorado Drift Elmo Faro Fjord Gala Halo Hydra Ikon Jade Kappa Kodiak
        Lido Lumen Lyra Mako Manta Merlin Nova Opal Orion Pavo Pico Polar Quanta Rondo Rover Sierra Sirius Solar Stride
        Talon Tango Titan Tivoli Turbo Urban Vega Vigo Vulpa Xenon Yukon Zola"""
    ),
    things=_list(
        """adapter, apron, axle, backpack, basket, battery pack, bearing, bench, binder, blanket, bolt set, bookcase,
        bottle, bracket, brush, bucket, cabinet, cable, candle, chair, charger, clamp, clock, coffee beans, cushion,
        cutting board, desk lamp, door handle, drill bit, envelope, extension lead, fan, filter, flask, folder, frame,
        funnel, fuse box, garden hose, gasket, glove, hammer, headset, hinge, hook, inkjet cartridge, jar, kettle,
        keyboard, knife, label roll, ladder, lamp, lens cap, lock, magnet strip, mat, microphone, mirror, monitor arm,
        mug, nail set, notebook, oil can, padlock, paint roller, pallet, pan, paper tray, pencil case, pillow, pipe,
        plate, pliers, plug, printer stand, pump, ratchet, ribbon, rope, ruler, saucepan, saw blade, scale, scarf,
        screwdriver, seat cover, sensor, shelf, shovel, socket, spanner, speaker, spring, stapler, stool, strap, switch,
        tape measure, teapot, thermostat, tile, torch, towel, toner, tripod, trolley, tube, umbrella, valve, vase,
        vice, wallet, washer, wheel, whisk, wrench"""
    ),
    finishes=_list(
        """amber, black, blue, brass, bronze, brushed, chrome, compact, copper, cotton, cream, deluxe, double, dual,
        folding, glass, green, grey, heavy, large, light, linen, long, matt, medium, mini, narrow, natural, nickel,
        oak, padded, pine, plain, portable, red, ribbed, round, rubber, short, silver, single, slim, small, soft,
        square, steel, striped, tall, triple, walnut, white, wide, wooden, woollen, yellow"""
    ),
    departments=_list(
        """Accounts, Archives, Assembly, Audit, Buying, Claims, Communications, Compliance, Customer Service, Data,
        Dispatch, Estates, Events, Exports, Facilities, Finance, Fleet, Grants, Imports, Innovation, Inspection,
        Inventory, Legal, Maintenance, Marketing, Operations, Payroll, Pensions, Personnel, Planning, Procurement,
        Production, Projects, Publishing, Quality, Research, Safety, Sales, Strategy, Training, Treasury, Warehouse"""
    ),
    jobs=_list(
        """accountant, actuary, analyst, architect, assistant, auditor, baker, buyer, carpenter, cashier, chemist,
        clerk, controller, coordinator, curator, dentist, designer, director, driver, economist, editor, electrician,
        engineer, fitter, geologist, inspector, lecturer, librarian, manager, mechanic, nurse, officer, optician,
        painter, pharmacist, physicist, pilot, planner, plumber, producer, registrar, secretary, surgeon, surveyor,
        teacher, technician, translator, treasurer, tutor, welder"""
    ),
    adjectives=_list(
        """active additional annual basic brief broad careful central cheap clear combined common complete complex
        constant correct current daily damaged delayed detailed digital direct double early eastern entire equal
        external fair final first formal former free fresh full general gradual great heavy hidden high independent
        initial internal joint large last late local lower main major manual minor mobile modern monthly narrow
        national new northern official old open original partial past permanent personal possible previous private
        proposed public quarterly quick quiet recent regional regular related remaining remote repeated revised rural
        second secure separate serious severe shared simple single slow small social southern special stable standard
        steady strong sudden technical temporary third total typical upper urgent useful usual valid weekly western"""
    ),
    nouns=_list(
        """account agreement airport annex answer archive area article balance batch board boiler branch bridge budget
        building cabinet campaign canal capacity cargo centre change channel chapter charge circuit claim clause client
        code collection committee contract corridor council course crew current customer deadline delivery demand
        deposit depot design detail document draft drawing engine entrance equipment error estimate evidence exchange
        expense factory failure fence figure filter floor forecast form fund garden gate grant group guide harbour
        heating hospital index inquiry invoice item journey kitchen laboratory ladder layer leak ledger level library
        licence limit line list loan machine market material matter measure meeting memory meter method model museum
        network notice number office option order output package panel parcel passage path payment permit pipeline plan
        plant platform policy position price problem process product profit project proposal purchase quarter question
        railway rate receipt record reduction refund region register repair reply report request result return review
        road roof room route sample schedule school section segment series service shipment signal site sketch software
        source staff stage statement station stock storage store strategy street structure supplier supply survey
        system table tank target task tax team term test theatre ticket tower town track trade tunnel unit update
        valley valve vehicle version vessel village volume wall warehouse waste window workshop yard year zone"""
    ),
    verbs=_list(
        """accepted adjusted altered announced approved arranged assessed assigned attached avoided balanced blocked
        cancelled changed charged checked cleaned cleared closed collected compared completed confirmed connected
        considered copied corrected counted covered created debated delayed delivered described designed discussed
        divided doubled drafted emptied ended entered estimated examined exceeded expanded extended finished followed
        forwarded funded halved handled identified improved included increased inspected installed issued joined
        labelled limited listed loaded located lowered managed marked measured mentioned merged moved noted obtained
        offered opened ordered organised packed paid passed placed planned posted prepared presented printed protected
        published purchased raised ranked received recorded reduced refused rejected released removed renewed repaired
        repeated replaced reported requested resolved restored returned reviewed revised scanned selected sent served
        shared shipped shortened signed simplified sold solved sorted started stopped stored studied submitted
        supplied supported suspended tested traced transferred translated updated used verified weighed withdrawn"""
    ),
    events=_list(
        """Autumn Serenade, Blue Hour, Brass and Strings, City Lights, Country Fair, Evening Raga, First Light, Folk
        Weekend, Garden Opera, Grand Tour, Harbour Nights, Jazz at Noon, Magic Flute, Midnight Train, Moonlight
        Sonata, Northern Voices, Open Stage, Paper Planes, Piano Masters, Poetry Slam, Quiet Storm, Rhythm Parade,
        River Dance, Seven Seas, Silent Film Gala, Spring Gala, Street Circus, Summer Proms, The Glass House, The
        Last Waltz, The Long Road, The Tempest, Velvet Underworld, Winter Tales, World Drums, Young Talent"""
    ),
    dishes=_list(
        """Apple pie, Bean stew, Beef roast, Caesar salad, Carrot soup, Cheese plate, Chicken curry, Cod fillet, Crab
        cakes, Duck breast, Egg noodles, Fish soup, Fried rice, Goat cheese tart, Grilled trout, Ham omelette, Iced tea,
        Lamb chops, Lemon cake, Lentil dal, Mushroom risotto, Onion soup, Pancakes, Pea soup, Pork belly, Prawn pasta,
        Potato gratin, Pumpkin ravioli, Rhubarb crumble, Roast turkey, Salmon steak, Spinach pie, Tomato salad, Tuna
        sandwich, Veal cutlet, Waffles"""
    ),
    sides=_list(
        "bread, butter, capers, chips, cream, dill, garlic, ginger, herbs, honey, mint, mustard, nuts, olives, "
        "peas, pepper, rice, sage, thyme, yoghurt"
    ),
    eateries=_list("Bistro, Cafe, Canteen, Diner, Grill, Inn, Kitchen, Noodle Bar, Pizzeria, Restaurant, Steakhouse"),
)

HELD_OUT = Vocabulary(
    first_names=_list(
        """Abigail Aleksy Alma Ambrose Anselm Ariadne Aubrey Augusta Barnaby Blanche Brigid Caspian Cedric Clement
        Cordelia Cosima Crispin Damian Demelza Dorothea Dougal Eleanor Emrys Estelle Eunice Evander Florian Gideon
        Guinevere Gwendolyn Hamish Hermione Horatio Imogen Isolde Jemima Jocelyn Kenelm Lachlan Leander Lysander
        Marigold Mortimer Nicodemus Octavia Ophelia Orlando Percival Philomena Portia Quillon Rosalind Rowena Seraphina
        Sigmund Tabitha Thaddeus Theodora Ulysses Valentina Vaughan Winifred Xavier Yolanda Zachary"""
    ),
    surname_heads=_list(
        """Aber Apple Arkw Bagsh Blenk Brack Buck Clev Cobb Crump Dibb Drax Fitz Flint Frob Gold Gribb Hask Huck
        Jes Jopl Kirk Knap Leib Lup Muld Mung Nettle Nutt Oglet Pax Penn Plumt Quill Rath Rick Scar Skel Smyth
        Spind Tatt Thrip Trel Tweed Uff Vand Vick Wain Yard Yel Zim"""
    ),
    surname_tails=_list(
        "abar aby agher anks erby ester etti ewski idge ingley inska intosh issen ister oake obek ogan olini onsky "
        "orne oughby owski udley unter yard"
    ),
    town_heads=_list(
        """Aldo Bexing Bosco Cassing Chill Dorr Ducking Eddle Fitting Glaston Gorm Hagg Hebble Inker Jarrow Kettle
        Limp Muckle Nib Osmo Pebble Pickle Quorn Rudding Scruff Snail Tadding Thistle Tiddle Umber Vexing Wimble Wobble
        Yarrow Zeal"""
    ),
    town_tails=_list(
        "barrow bottom cester chapel coombe drove edge end garth glade hamlet hope marches moor ness nook "
        "over rigg strand toft tree vane weald wold"
    ),
    roads=_list("Alley, Boulevard, Causeway, Chase, Arcade, Esplanade, Mews, Bypass, Promenade, Quay, Rise, Wynd"),
    countries=_list(
        """Albania, Algeria, Andorra, Armenia, Bhutan, Botswana, Cyprus, Ecuador, Ethiopia, Fiji, Georgia, Guyana,
        Jamaica, Jordan, Laos, Lesotho, Lithuania, Luxembourg, Malta, Moldova, Mongolia, Namibia, Oman, Panama,
        Paraguay, Rwanda, Samoa, Slovakia, Tonga, Tunisia, Uganda, Zambia"""
    ),
    company_heads=_list(
        """Aardvark Alchemy Almanac Argonaut Badger Bandstand Bonfire Bramble Cavendish Chimera Clockwork Cormorant
        Dandelion Dragonfly Elysium Everglade Firefly Foxglove Galleon Gingham Gondola Hedgehog Hummingbird Icarus
        Jackdaw Jigsaw Kestrel Kingfisher Labyrinth Ladybird Mandolin Marmalade Mistral Nightingale Nutmeg Obelisk
        Odyssey Parasol Partridge Pendulum Periwinkle Porcupine Quicksilver Ragtime Radish Sandpiper Scarab Starling
        Tamarind Tapestry Thimble Toadstool Turnstile Unicorn Vanguard Walrus Wigwam Yellowhammer Zeppelin"""
    ),
    company_trades=_list(
        """Acoustics, Antiques, Aviation, Beverages, Biotech, Boatyard, Brewery, Carpets, Cement, Confectionery,
        Couriers, Cycles, Dyeworks, Embroidery, Fisheries, Florists, Foundry, Galleries, Greenhouses, Instruments,
        Ironworks, Kitchens, Laundry, Leather, Masonry, Mills, Nurseries, Orchards, Outfitters, Perfumes, Pianos,
        Potteries, Quarries, Refinery, Sawmill, Shipyard, Stables, Stationers, Tannery, Upholstery, Vineyards,
        Weavers"""
    ),
    company_forms=_list("Oy, S.p.A., Pty, & Nephews, Trust, Guild, & Cousins, KG, Sarl, Cooperative"),
    makes=_list(
        """Abacus Basalt Bongo Caprice Dazzle Enigma Figaro Gazelle Hobbit Impala Jubilee Karma Lagoon Maestro Nomad
        Oberon Pampero Quasar Rapier Safari Tarantella Utopia Vortex Wombat Yodel Zodiac"""
    ),
    things=_list(
        """abrasive disc, airbed, anvil, armchair, ashtray, barometer, bathrobe, beaker, bellows, birdhouse,
        blowtorch, bookend, braid, broom, buckle, buoy, bunting, burner, canister, canopy, carafe, castor, chisel,
        coaster, colander, corkscrew, crate, crowbar, decanter, doormat, dowel, dustpan, easel, eyelet, ferrule,
        flagpole, footstool, gauge, goblet, grommet, hairdryer, hammock, haversack, hourglass, inkwell, jigger, kiln,
        ladle, lanyard, lectern, mallet, mandrel, napkin, nozzle, oar, paddle, paperclip, parchment, peg, pestle,
        pitchfork, pulley, quilt, raincoat, rivet, rucksack, sandal, sieve, skillet, snorkel, spatula, spool, stencil,
        stirrup, suitcase, tablecloth, tankard, thermometer, toboggan, tongs, trellis, trowel, varnish, wheelbarrow,
        wok, yoke"""
    ),
    finishes=_list(
        """bevelled, burgundy, carved, chequered, coated, collapsible, crimson, curved, denim, embossed, enamelled,
        felted, fluted, fringed, frosted, galvanised, gilded, hollow, inflatable, jointed, knitted, laminated,
        lilac, maroon, mottled, olive, oval, pewter, pleated, quilted, rustic, scented, spotted, tapered, teal,
        tinted, turquoise, varnished, vintage, waxed"""
    ),
    departments=_list(
        """Acquisitions, Admissions, Bursary, Catalogues, Ceremonies, Chancery, Conservation, Curation, Diagnostics,
        Engagement, Forestry, Governance, Horticulture, Housekeeping, Hydrology, Intake, Lettings, Licensing,
        Mailroom, Metrology, Navigation, Outreach, Parks, Philanthropy, Provenance, Recruitment, Reprographics,
        Residences, Royalties, Salvage, Stewardship, Sustainability, Telephony, Underwriting, Valuation, Wayleaves"""
    ),
    jobs=_list(
        """adjudicator, apprentice, archivist, bailiff, barrister, beekeeper, biologist, bookbinder, botanist, brewer,
        butcher, cartographer, chauffeur, choreographer, cobbler, composer, cooper, dispatcher, drummer, farrier,
        florist, forester, gardener, glazier, goldsmith, historian, jeweller, locksmith, magistrate, midwife, milliner,
        notary, ombudsman, orderly, paramedic, plasterer, porter, potter, ranger, roofer, sculptor, shepherd, steward,
        tailor, valuer, verger, warden, watchmaker, zoologist"""
    ),
    adjectives=_list(
        """abrupt absurd ample ancient awkward barren benign bitter bold brittle bumpy candid clumsy coarse cosy crisp
        cunning dense dire dreary dusty eager elegant exotic faint feeble fertile fierce flimsy frail frugal fuzzy
        genial gloomy grim gritty hasty hollow humble idle jagged jolly keen lavish limp lofty lucid meagre mellow
        murky naive nimble noble obscure opaque pale peculiar placid plush prudent quaint ragged rigid robust rugged
        scarce shabby sleek slender solemn sparse stale stark stout subtle sullen surplus swift tame tedious tender
        thorough thrifty tranquil trivial vague vivid wary weary wicked witty"""
    ),
    nouns=_list(
        """abbey acrobat allotment altar anthem apiary aqueduct armoury artefact avalanche axis bakehouse ballad barge
        basin beehive belfry bishopric bonnet boulder brewhouse brigade brochure bulb byway canopy caravan carnival
        causeway cellar chalet chimney chorus cistern citadel cloister coastline corncrib cottage cradle crater creek
        dairyman dam dispute ditch dome drawbridge dungeon dynamo eclipse embankment estuary exhibit falconry fanfare
        ferry festival flume flagship folly foothill fortress fossil fountain freezer frieze gallery gazebo geyser
        glacier grotto gutter habitat hamper hangar harness hatch hedge heirloom headland hoist hostel icicle inlet
        isthmus jetty juror kennel kiosk knoll lagoon larder lattice lawn legend lodge lorry mansion manuscript marina
        marquee mast maypole melody meteor moat monument minaret mural nebula novel oasis obelisk orchard orchestra
        outpost oven paddock pagoda parapet pasture patrol pavilion peninsula petal pianist pier pilgrim plateau plaza
        plough pond prairie pulpit pyramid quarrel quayside quiver raft rectory ravine reef relic reservoir riddle
        sanctuary sapling schooner scroll shed shrine shrub sleigh sluice spire sprinkler stairwell statue steeple
        stream swamp sundeck tavern tent terrain thicket throne tide torrent trench tribe turbine turret vault veranda
        viaduct vineyard volcano voyage waterfall windmill wreck"""
    ),
    verbs=_list(
        """abandoned absorbed adorned amended amused anchored baffled banished bartered besieged blended boasted
        borrowed bundled buried carved ceded chased cherished chiselled coaxed concealed conquered crossed crushed
        dazzled decorated defended delighted dented deserted devoured dismantled diverted drained dredged echoed
        embellished encircled enlarged entertained eroded excavated exhibited explored faced ferried flattened flooded
        forged founded framed foraged garnished gathered gilded glazed grazed guarded harvested haunted hauled heated
        hoisted honoured illuminated imported inherited invaded inverted juggled kindled launched lifted mended mimicked
        mocked moulded nurtured overlooked painted patrolled photographed pierced pillaged ploughed polished
        propelled pruned quarried raided rebuilt reclaimed rescued roasted salvaged sealed sheltered shielded smoothed
        spotted sprayed stacked stitched strengthened surrounded swept toppled towed trained trampled trimmed
        uncovered unearthed unveiled vacated varnished visited watered welded whitewashed wrapped"""
    ),
    events=_list(
        """Cinnabar Nocturne, Barefoot Ballet, Carousel Suite, Clockmaker, Tin Whistle, Dancing Bears, Dusk Chorale,
        Electric Hedgerow, Fable Keepers, Gypsy Caravan, Harlequin Night, Kite Makers, Moth Procession, Mandolin
        Congress, Masquerade, Nightjar Quartet, Oboe Marathon, Puppet Kingdom, Requiem for Cello, Sparrow Songs,
        Tambourine Ball, Thunder Choir, Underwater Ballet, Violin Duel, Whistling Gallery, Yuletide Organ"""
    ),
    dishes=_list(
        """Artichoke tartlet, Aubergine bake, Spelt broth, Beetroot carpaccio, Bouillabaisse, Calamari, Chowder,
        Dumplings, Empanadas, Fennel gnocchi, Goulash, Halibut ceviche, Haggis, Jambalaya, Kedgeree, Lasagne, Meringue,
        Moussaka, Mussels, Nougat parfait, Octopus skewers, Paella, Pavlova, Pheasant terrine, Quail pastilla,
        Ratatouille, Sauerkraut, Scallop mousse, Schnitzel, Sorbet, Tagine, Tiramisu, Venison ragout"""
    ),
    sides=_list(
        "almonds, anchovies, basil, chutney, coriander, croutons, figs, horseradish, kale, lychees, mango, "
        "oregano, paprika, pesto, polenta, raisins, sumac, sesame, tarragon, wasabi"
    ),
    eateries=_list("Bodega, Brasserie, Chophouse, Oyster Shack, Creperie, Osteria, Rotisserie, Taverna, Teahouse"),
)
