"""FedAwS in ten lines: ten clients, each with images of one digit and with no class embedding but its own.

python examples/start.py
"""

from sklearn.datasets import load_digits

import fedaws

x, y = load_digits(return_X_y=True)
data = fedaws.from_arrays(x / 16, y, validation=0.25)  # a client per class; a quarter held out to test on
for method in ("positive-only", "fedaws"):
    config = fedaws.Config().override([f"method={method}", "clients.lr=1", "clients.class_lr=0.3", "train.rounds=200"])
    run = fedaws.train(data, config=config)
    last = run.metrics[-1]
    print(f"{method}: {last['precision@1']:.1%} right, largest cosine of two classes {last['max_cosine']:.2f}")
print("taken for", run.identify(data.x_test[:8]).classes.flatten().tolist(), "- they are", data.y_test[:8].tolist())
