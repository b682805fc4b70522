"""What guidellm uses: a loader that gives out the items of a data set, one at a time and in order."""
from torch.utils.data.dataloader import DataLoader  # noqa: F401
from torch.utils.data.dataset import IterableDataset  # noqa: F401


def get_worker_info():
    return None
