"""`troupe config`, and `config get|set|unset`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.commands.frame import command

_KEY = {"key": "The setting's name; `troupe config` lists them."}


@command(example="troupe config --json", flags={}, name="list")
def show(context: Context, json: bool = False, debug: bool = False) -> None:
    """List this machine's settings, what each is set to, and what it means."""
    from troupe_tasks import config
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import escape

    values = config.read(Paths.from_env())
    if json:
        show_json({key: values.get(key) for key in config.SETTINGS})
        return
    for setting in config.SETTINGS.values():
        usual = f"{setting.usual} (not set)" if setting.usual else "-"
        print(f"{setting.key:24} {escape(values.get(setting.key, usual)):24} {setting.meaning}")


@command(example="troupe config get timezone", flags=_KEY, positional=("key",))
def get(context: Context, key: str, json: bool = False, debug: bool = False) -> None:
    """Show one setting; nothing is printed when it is not set."""
    from troupe_tasks import config
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import escape

    value = config.read(Paths.from_env()).get(config.setting(key).key)
    if json:
        show_json({key: value})
    elif value is not None:
        print(escape(value))


@command(
    example="troupe config set timezone Europe/Berlin", flags={**_KEY, "value": "What to set it to."},
    positional=("key", "value"), name="set",
)  # fmt: skip
def put(context: Context, key: str, value: str, json: bool = False, debug: bool = False) -> None:
    """Set one setting; comments in the file stay."""
    from troupe_tasks import config
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.paths import Paths

    config.put(Paths.from_env(), key, value)
    if json:
        show_json({key: config.read(Paths.from_env()).get(key)})


@command(example="troupe config unset timezone", flags=_KEY, positional=("key",))
def unset(context: Context, key: str, json: bool = False, debug: bool = False) -> None:
    """Take one setting back to its default."""
    from troupe_tasks import config
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.paths import Paths

    config.unset(Paths.from_env(), key)
    if json:
        show_json({key: None})
