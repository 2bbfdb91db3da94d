from __future__ import annotations

import paddle

from lowbit.models.auxiliary import logits_in_evaluation


class ThreeOutputs(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = paddle.nn.Linear(4, 3)

    def forward(self, x):
        y = self.fc(x)
        return [y, y * 2, y * 3]


def test_one_tensor_in_evaluation_and_all_in_training():
    net = ThreeOutputs()
    names, parameters = [name for name, _ in net.named_parameters()], net.parameters()
    net = logits_in_evaluation(net)
    x = paddle.rand([2, 4])
    assert len(net(x)) == 3
    net.eval()
    assert list(net(x).shape) == [2, 3]
    assert [name for name, _ in net.named_parameters()] == names and net.parameters()[0] is parameters[0]
    static = paddle.jit.to_static(net.forward, [paddle.static.InputSpec([None, 4])], full_graph=True)
    assert len(paddle.utils.flatten(static.concrete_program.outputs)) == 1
