"""The store of voices: precomputed folders, and files that others have put there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_speech import FakeFace, FakeSpeechAdapter
from safetensors.numpy import save_file
from speech_stage import Stage, config
from test_http import recording

from duplex.adapters.speech import UploadedVoice
from duplex.core.errors import DuplexError, ErrorCode
from duplex.server.run import running_gateway
from duplex.speech.profiles import MANIFEST, load_profiles, save_profile
from duplex.speech.voices import VoiceStore


def write_folder(folder: Path, **voices: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps({"voices": voices}))


def write_profile(path: Path, size: int = 1024, *, codes: bool = False) -> None:
    tensors: dict[str, Any] = {"speaker_embedding": np.linspace(-1, 1, size, dtype=np.float32)}
    if codes:
        tensors["ref_code"] = np.arange(32, dtype=np.int32).reshape(2, 16)
    save_file(tensors, path)


def test_a_precomputed_folder_is_loaded_at_the_start(tmp_path: Path) -> None:
    write_profile(tmp_path / "a.safetensors", codes=True)
    write_profile(tmp_path / "b.safetensors", 2048)
    write_folder(
        tmp_path,
        Ann={"name": "Ann", "file": "a.safetensors", "mode": "icl", "ref_text": "hello"},
        bob={"name": "bob", "file": "b.safetensors", "mode": "xvec"},
    )
    store = VoiceStore(None, precomputed=tmp_path)
    assert store.precomputed == ["Ann", "bob"]
    ann, bob = store.find("ann"), store.find("BOB")
    assert ann is not None
    assert bob is not None
    assert ann.codes == (tuple(range(16)), tuple(range(16, 32)))
    assert (ann.text, len(ann.embedding or ())) == ("hello", 1024)
    assert (bob.codes, bob.text, len(bob.embedding or ())) == (None, None, 2048)


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        "{",
        "[]",
        "{}",
        '{"voices": []}',
        '{"voices": {"a": 5}}',
        '{"voices": {"a": {}}}',
        '{"voices": {"a": {"file": "missing.safetensors"}}}',
        '{"voices": {"a": {"file": "../a.safetensors"}}}',
        '{"voices": {"a": {"file": "/etc/passwd"}}}',
        '{"voices": {"a": {"file": "torn.safetensors"}}}',
        '{"voices": {"a": {"file": "empty.safetensors"}}}',
        '{"voices": {"a": {"file": "sub/a.safetensors"}}}',
    ],
)
def test_a_precomputed_folder_that_is_not_whole_stops_the_start(tmp_path: Path, manifest: str | None) -> None:
    folder = tmp_path / "voices"
    (folder / "sub").mkdir(parents=True)
    write_profile(tmp_path / "a.safetensors")
    write_profile(folder / "sub" / "a.safetensors")
    (folder / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    save_file({"other": np.zeros(1, np.float32)}, folder / "empty.safetensors")
    if manifest is not None:
        (folder / MANIFEST).write_text(manifest)
    with pytest.raises(DuplexError) as fault:
        VoiceStore(None, precomputed=folder)
    assert fault.value.code is ErrorCode.BAD_CONFIG


def test_what_a_tool_saves_is_loaded(tmp_path: Path) -> None:
    embedding = tuple(np.linspace(-1, 1, 1024, dtype=np.float32).tolist())
    ann = UploadedVoice(name="Ann Élise", text="hello", embedding=embedding, codes=(tuple(range(16)),) * 3)
    bob = UploadedVoice(name="bob", embedding=embedding)
    folder = tmp_path / "new" / "voices"
    save_profile(folder, ann)
    save_profile(folder, bob)
    assert load_profiles(folder) == {"ann élise": ann, "bob": bob}
    manifest = json.loads((folder / MANIFEST).read_bytes())["voices"]
    assert {name: entry["mode"] for name, entry in manifest.items()} == {"Ann Élise": "icl", "bob": "xvec"}
    assert VoiceStore(None, precomputed=folder).find("ANN ÉLISE") == ann


def test_a_saved_voice_is_replaced_only_when_asked(tmp_path: Path) -> None:
    first = UploadedVoice(name="Ann", embedding=(1.0,) * 1024, codes=(tuple(range(16)),), text="hello")
    second = UploadedVoice(name="ANN", embedding=(2.0,) * 1024)
    save_profile(tmp_path, first)
    tree = json.loads((tmp_path / MANIFEST).read_bytes())
    (tmp_path / MANIFEST).write_text(json.dumps(tree | {"made_by": "somebody"}))
    with pytest.raises(DuplexError) as caught:
        save_profile(tmp_path, second)
    assert caught.value.code is ErrorCode.VOICE_EXISTS
    assert load_profiles(tmp_path) == {"ann": first}
    save_profile(tmp_path, second, replace=True)
    assert load_profiles(tmp_path) == {"ann": second}
    assert json.loads((tmp_path / MANIFEST).read_bytes())["made_by"] == "somebody"


def test_a_folder_that_is_broken_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DuplexError) as caught:
        save_profile(tmp_path, UploadedVoice(name="ann", embedding=(1.0,) * 1024))
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_the_mode_says_whether_codes_are_used(tmp_path: Path) -> None:
    write_profile(tmp_path / "a.safetensors", codes=True)
    write_folder(tmp_path, ann={"name": "ann", "file": "a.safetensors", "mode": "xvec"})
    assert load_profiles(tmp_path)["ann"].codes is None


async def test_precomputed_voices_are_served_and_their_names_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    folder.mkdir()
    write_profile(folder / "a.safetensors")
    write_folder(folder, Ann={"file": "a.safetensors", "mode": "xvec"})
    face = FakeFace()
    settings = config(custom_voice_dir=str(folder), speaker_samples_dir=str(tmp_path / "uploads"))
    async with (
        running_gateway(settings, [FakeSpeechAdapter(face)]) as gateway,
        Stage(gateway, face).http() as http,
    ):
        assert "Ann" in (await http.get("/v1/audio/voices")).json()["voices"]
        spoken = await http.post("/v1/audio/speech", json={"input": "Hello.", "voice": "ann"})
        assert spoken.status_code == 200
        stored = face.validated[-1].stored_voice
        assert stored is not None
        assert (stored.name, stored.reference) == ("Ann", None)
        files = {"audio_sample": ("a.wav", recording(), "audio/wav")}
        data = {"name": "ANN", "consent": "yes"}
        taken = await http.post("/v1/audio/voices", data=data, files=files)
        assert taken.json()["error"]["error_code"] == "voice_exists"
        assert (await http.delete("/v1/audio/voices/Ann")).status_code == 404


def test_an_upload_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VoiceStore(tmp_path)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        store.add(name="ann", consent="yes", audio=recording(), mime_type="audio/wav")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert store.uploaded == []
    assert store.add(name="ann", consent="yes", audio=recording(), mime_type="audio/wav")[1]


def test_uploads_are_off_without_a_folder() -> None:
    with pytest.raises(DuplexError, match="SPEAKER_SAMPLES_DIR"):
        VoiceStore(None).add(name="ann", consent="yes", audio=recording(), mime_type="audio/wav")
