"""Finding adapters, and saying what is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from duplex.adapters.base import Adapter
from duplex.adapters.registry import installed_adapters, load_adapter, load_adapters
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode

SCRIPTED = "duplex.adapters.scripted:create"


def refused(config: ServerConfig) -> DuplexError:
    with pytest.raises(DuplexError) as caught:
        load_adapters(config)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    return caught.value


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of importable modules; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_scripted_adapter_is_an_adapter() -> None:
    assert isinstance(ScriptedAdapter(), Adapter)


def test_factory_gets_its_options() -> None:
    config = ServerConfig(adapter=(SCRIPTED,), adapters={SCRIPTED: {"id": "mine", "audio_ms": 20}})
    (adapter,) = load_adapters(config)
    assert adapter.info.id == "mine"


def test_unknown_option_is_refused_by_name() -> None:
    error = refused(ServerConfig(adapter=(SCRIPTED,), adapters={SCRIPTED: {"colour": "red"}}))
    assert "colour" in error.message


def test_options_for_nobody_are_refused() -> None:
    error = refused(ServerConfig(adapter=(SCRIPTED,), adapters={"nobody": {}}))
    assert "nobody" in error.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody", "no adapter 'nobody' is installed; there are:"),
        ("no_such_module:create", "there is no module 'no_such_module'"),
        ("duplex.adapters.scripted:nothing", "has no 'nothing'"),
        ("duplex.adapters.scripted:STAMP_SAMPLES", "has no 'STAMP_SAMPLES'"),
        ("builtins:dict", "the factory gave dict, which is no adapter"),
    ],
)
def test_what_cannot_be_had_is_named(name: str, words: str) -> None:
    assert words in refused(ServerConfig(adapter=(name,))).message


def test_missing_package_says_what_to_install(modules: Path) -> None:
    (modules / "third_party.py").write_text("import no_such_package.inner\n")
    (modules / "late.py").write_text("def create(options):\n    import no_such_package\n")
    for name in ("third_party:create", "late:create"):
        error = refused(ServerConfig(adapter=(name,)))
        assert "needs 'no_such_package" in error.message
        assert "pip install no_such_package" in error.message
        assert isinstance(error.__cause__, ImportError)


def test_missing_package_of_an_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(options: Mapping[str, Any]) -> Adapter:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    module = type(sys)("duplex.adapters.embedded.fake")
    module.create = create  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(DuplexError) as caught:
        load_adapter(f"{module.__name__}:create", {})
    assert "needs 'onnxruntime'" in caught.value.message
    assert 'pip install "duplex-gateway[embedded]"' in caught.value.message


def test_two_models_of_one_name_are_refused(modules: Path) -> None:
    (modules / "twin.py").write_text("from duplex.adapters.scripted import create\n")
    assert "'scripted'" in refused(ServerConfig(adapter=(SCRIPTED, "twin:create"))).message


class Point:
    """An entry point of another distribution."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value


def test_all_installed_ones_are_served_but_those_that_lack_a_package(
    modules: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (modules / "lacking.py").write_text("import no_such_package\n")
    points = {"good": Point("good", SCRIPTED), "lacking": Point("lacking", "lacking:create")}
    monkeypatch.setattr("duplex.adapters.registry.installed_adapters", lambda: points)
    (adapter,) = load_adapters(ServerConfig())
    assert adapter.info.id == "scripted"
    assert "pip install no_such_package" in caplog.text
    assert "no_such_package" in refused(ServerConfig(adapter=("lacking",))).message
    del points["good"]
    assert "there is no adapter to serve" in refused(ServerConfig()).message


def test_an_adapter_without_its_options_is_left_out_without_a_warning(
    modules: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (modules / "bare.py").write_text(
        "from duplex.adapters.base import NotConfigured\n"
        "from duplex.adapters.scripted import create as scripted\n"
        "def create(options):\n"
        "    if not options:\n"
        "        raise NotConfigured('bare: model is not set', param='model')\n"
        "    return scripted({'id': options['model']})\n"
    )
    points = {"good": Point("good", SCRIPTED), "bare": Point("bare", "bare:create")}
    monkeypatch.setattr("duplex.adapters.registry.installed_adapters", lambda: points)
    with caplog.at_level("INFO", logger="duplex.adapters"):
        (adapter,) = load_adapters(ServerConfig())
    assert adapter.info.id == "scripted"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "left out: bare: model is not set")
    ]
    # by name, or with options, it is served or refused
    error = refused(ServerConfig(adapter=("bare",)))
    assert (error.message, error.param) == ("bare: model is not set", "model")
    served = load_adapters(ServerConfig(adapters={"bare": {"model": "mine"}}))
    assert [adapter.info.id for adapter in served] == ["scripted", "mine"]
    del points["good"]
    assert "there is no adapter to serve; bare: model is not set" in refused(ServerConfig()).message


def test_a_broken_adapter_is_not_left_out_silently(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (modules / "broken.py").write_text("def create(options):\n    return None\n")
    monkeypatch.setattr(
        "duplex.adapters.registry.installed_adapters", lambda: {"broken": Point("broken", "broken:create")}
    )
    assert "which is no adapter" in refused(ServerConfig()).message


def test_the_embedded_ones_are_installed() -> None:
    assert {"embedded-voice", "embedded-commentary"} <= set(installed_adapters())


def test_factory_may_be_a_class(modules: Path) -> None:
    (modules / "klass.py").write_text(
        "from duplex.adapters.scripted import ScriptedAdapter\n"
        "class Mine(ScriptedAdapter):\n"
        "    def __init__(self, options):\n"
        "        super().__init__()\n"
    )
    (adapter,) = load_adapters(ServerConfig(adapter=("klass:Mine",)))
    assert isinstance(adapter, ScriptedAdapter)
    assert adapter.options == ScriptedOptions()
