"""The command line, a file to a command or group. Mistakes cost one line and exit code 2."""

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from homunculus.cli import ask, bench, data, evaluate, gallery, gaze, look, report, train
from homunculus.cli.arguments import parse_fixation
from homunculus.cli.loading import blamed, load_methods
from homunculus.errors import HomunculusError

__all__ = ["app", "fail", "main", "parse_fixation"]

app = typer.Typer(
    help="A fixed visual budget for vision-language models, spent where the question looks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    load: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.py", help="Python that registers methods of your own; repeatable."),
    ] = None,
) -> None:
    load_methods(load or [])
    if version:
        from homunculus import __version__

        print(__version__)


for command in (look.look, ask.ask, gallery.gallery, gallery.example, train.train, report.report, gaze.gaze):
    app.command()(command)
app.command("eval")(evaluate.evaluate)
for group in (data.app, bench.app):
    app.add_typer(group)


def main() -> None:
    """The entry point: mistakes, ours to refuse or typer's, become one line on stderr and exit code 2."""
    warnings.filterwarnings("ignore", module="PIL")  # a broken file gets its one line
    try:
        sys.exit(app(standalone_mode=False))
    except HomunculusError as error:
        fail(str(error))
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        # Usage errors; typer has moved their class between releases, so they are known by how they print themselves.
        if not hasattr(error, "format_message"):
            if said := blamed(error):
                fail(said)
            raise
        context: Any = getattr(error, "ctx", None)
        path = command_path(context)
        if sys.argv[1:] == path and hasattr(context.command, "commands"):
            error.show()  # type: ignore[attr-defined]  # a group without a command: the help page
            sys.exit(2)
        fail(f"{error.format_message().rstrip('.')}: see `{' '.join(['homunculus', *path])} --help`")


def command_path(context: Any) -> list[str]:
    """The words that lead to a command, such as data, write; none at the top or where nobody knows."""
    if context is None or context.parent is None:
        return []
    return [*command_path(context.parent), context.info_name]


def fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
