"""The benchmarks of training, tried on tiny recipes."""

import json

from bench import ablations
from bench import train as bench

STAGES = {"pretrain", "score", "read", "aware", "joint", "whole"}


def test_every_stage_is_timed(capsys):
    bench.main(["--preset", "tiny", "--steps", "2", "--capacity", "2"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    timed = {line[0]: float(line[2]) for line in lines if line and line[0] in STAGES}
    assert set(timed) == STAGES and all(rate > 0 for rate in timed.values())


def test_every_variant_is_tried_once(tmp_path, capsys, monkeypatch):
    """One that is there is not trained again, and all of them begin with the same weights."""
    ablations.main(["--preset", "tiny", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "ablations.json").read_text())
    assert [row["variant"] for row in rows] == list(ablations.variants(ablations.on_cpu()))
    assert all(row["seconds"] > 0 and 0 <= row[name] <= 1 for row in rows for name in row if ":" in name)
    assert capsys.readouterr().out.count("| letters, Muon | 6 |") == 1
    (tmp_path / "ablations.json").write_text(json.dumps(rows[1:]))
    tried = []
    monkeypatch.setattr(ablations, "train", lambda variant, *_: tried.append(variant) or {"seconds": 1.0})
    monkeypatch.setattr(ablations, "to_markdown", lambda rows: "")
    ablations.main(["--preset", "tiny", "--out", str(tmp_path)])
    assert [variant.part for variant in tried] == ["reader"]
