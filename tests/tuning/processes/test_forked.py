"""A forked process answers one question after another, and is gone with the last who could ask."""

from __future__ import annotations

from multiprocessing import get_context

from genkern.tuning.processes.forked import serve


def test_each_question_has_an_answer_and_the_end_of_the_pipe_is_the_end() -> None:
    """What is raised is an answer too."""
    context = get_context("fork")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, [pipe], lambda number: 12 // number), daemon=True)
    process.start()
    theirs.close()
    try:
        for question, answer in ((3, 4), (0, ZeroDivisionError), (6, 2)):
            pipe.send(question)
            said = pipe.recv()
            assert said == answer or type(said) is answer
        pipe.close()
        process.join(10)
        assert process.exitcode == 0
    finally:
        process.kill()
