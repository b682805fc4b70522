from typing import Generic, TypeVar

Item = TypeVar("Item")


class DataLoader(Generic[Item]):
    def __init__(self, dataset, batch_size=1, shuffle=False, collate_fn=None, **_):
        if batch_size != 1 or shuffle:  # workers only prepare items ahead
            raise NotImplementedError("this stands in for PyTorch, and gives out one item at a time, in order")
        self.dataset, self.collate_fn = dataset, collate_fn or (lambda batch: batch)

    def __iter__(self):
        return (self.collate_fn([item]) for item in self.dataset)
