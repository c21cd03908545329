"""The benchmark of training, tried on the tiny recipe."""

from bench import train as bench


def test_every_stage_is_timed(capsys):
    bench.main(["--preset", "tiny", "--steps", "2", "--capacity", "2"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    timed = {line[0]: float(line[2]) for line in lines if line and line[0] in ("pretrain", "score", "read", "whole")}
    assert set(timed) == {"pretrain", "score", "read", "whole"} and all(rate > 0 for rate in timed.values())
