"""The paper's six datasets, read from the files their publishers hand out. Only the train split is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedekd.data import formats
from fedekd.data.registry import register_dataset
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError


@dataclass(frozen=True)
class Published:
    """A published dataset: where its files lie under the data folder, how to read them, what they must hold."""

    name: str
    title: str
    task: str
    shape: tuple[int, int, int]
    train: tuple[int, ...]
    """Training images: in the edition the benchmark is defined on, then in others that are about."""
    classes: int
    homes: tuple[str, ...]
    """Folders to look in: fedekd's own layout first, then one other tool's."""
    files: tuple[str, ...]
    read: Callable[[Path], formats.Arrays]
    publisher: str
    labels: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str = ""

    def find(self, folder: Path) -> Path | None:
        """The first home in which every file is there and not empty."""
        for home in self.homes:
            paths = [folder / home / file for file in self.files]
            if all(path.is_file() and path.stat().st_size for path in paths):
                return folder / home
        return None

    def place(self, home: Path) -> Path:
        """What to show of a home: the folder, or the file where there is but one."""
        return home if len(self.files) > 1 else home / self.files[0]

    def located(self, folder: Path) -> Path | None:
        home = self.find(folder)
        return home and self.place(home)

    def load(self, folder: Path) -> Dataset:
        home = self.find(folder)
        if home is None:
            raise FedekdError(
                f"{self.title} is not in {folder} (looked for {self._wanted(folder)}); run `fedekd data fetch "
                f"{self.name}`, or name the folder that holds it with --data DIR or FEDEKD_DATA"
            )
        return self.load_home(home)

    def load_home(self, home: Path) -> Dataset:
        where = home / self.files[0]
        try:
            x, y = self.read(home)
            self._check(where, x, y)
        except formats.BadFile as error:
            raise FedekdError(f"{error}; get it anew with `fedekd data fetch {self.name}`") from None
        edition = "" if len(x) == self.train[0] else f", another edition: {len(x):,} images, not {self.train[0]:,}"
        return Dataset(
            name=self.name,
            task=self.task,
            x=x,
            y=y,
            outputs=self.classes if self.task == "classification" else 1,
            labels=self.labels,
            source=f"{self.publisher}, train split{edition}",
        )

    def _wanted(self, folder: Path) -> str:
        """The first file that is lacking from the home that comes nearest."""
        lacking = [[file for file in self.files if not (folder / home / file).is_file()] for home in self.homes]
        nearest = min(range(len(lacking)), key=lambda index: len(lacking[index]))
        return str(Path(self.homes[nearest]) / (lacking[nearest] or list(self.files))[0])

    def _check(self, where: Path, x: np.ndarray, y: np.ndarray) -> None:
        if x.shape[1:] != self.shape:
            raise formats.BadFile(where, f"images are {_shape(x.shape[1:])}, {self.title}'s are {_shape(self.shape)}")
        if len(x) not in self.train:
            raise formats.BadFile(
                where, f"{len(x):,} training images where {self.title} has {self.train[0]:,}: not the whole dataset"
            )
        wrong = y[~np.isin(y, np.arange(self.classes))]
        if len(wrong):
            raise formats.BadFile(where, f"label {wrong[0]} is not one of 0..{self.classes - 1}")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)


def _medmnist(
    name: str,
    title: str,
    task: str,
    train: tuple[int, ...],
    classes: int,
    channels: int,
    labels: tuple[str, ...] = (),
    note: str = "",
) -> Published:
    file = f"{name}.npz"
    return Published(
        name=name,
        title=title,
        task=task,
        shape=(channels, 28, 28),
        train=train,
        classes=classes,
        homes=("", "medmnist"),
        files=(file,),
        read=lambda home: formats.read_medmnist(home / file),
        publisher="MedMNIST v3 (zenodo.org/records/10519652)",
        labels=labels,
        note=note,
    )


FASHION_FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
CIFAR_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
THINGS = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
EYES = "choroidal neovascularization,diabetic macular edema,drusen,normal"
ORGANS = "bladder,left femur,right femur,heart,left kidney,right kidney,liver,left lung,right lung,pancreas,spleen"

PAPER = (
    Published(
        name="fashionmnist",
        title="FashionMNIST",
        task="classification",
        shape=(1, 28, 28),
        train=(60000,),
        classes=10,
        homes=("fashion_mnist", "FashionMNIST/raw"),
        files=FASHION_FILES,
        read=lambda home: formats.read_idx_pair(home / FASHION_FILES[0], home / FASHION_FILES[1]),
        publisher="Zalando Research (github.com/zalandoresearch/fashion-mnist)",
        labels=tuple(CLOTHES.split(",")),
    ),
    Published(
        name="cifar10",
        title="CIFAR-10",
        task="classification",
        shape=(3, 32, 32),
        train=(50000,),
        classes=10,
        homes=("cifar10", "cifar-10-batches-bin"),
        files=CIFAR_FILES,
        read=lambda home: formats.read_cifar(home / file for file in CIFAR_FILES),
        publisher="A. Krizhevsky, University of Toronto (cs.toronto.edu/~kriz/cifar.html)",
        labels=tuple(THINGS.split(",")),
    ),
    _medmnist("octmnist", "OCTMNIST", "classification", (97477,), 4, 1, tuple(EYES.split(","))),
    _medmnist("organamnist", "OrganAMNIST", "classification", (34561, 34581), 11, 1, tuple(ORGANS.split(","))),
    _medmnist(
        "retinamnist",
        "RetinaMNIST",
        "regression",
        (1080,),
        5,
        3,
        note="grades 0 to 4; photographs that are also in dr_regular",
    ),
    Published(
        name="dr_regular",
        title="Diabetic Retinopathy",
        task="regression",
        shape=(3, 224, 224),
        train=(1200, 1400),
        classes=5,
        homes=("dr_regular", "medimeta/dr_regular"),
        files=("images.hdf5", "splits/train.txt", "task_labels/DR level.npy"),
        read=lambda home: formats.read_medimeta(home, "DR level"),
        publisher="MedIMeta, regular fundus (zenodo.org/records/7884735)",
        aliases=("dr", "diabetic retinopathy (regular fundus)"),
        note="grades 0 to 4; photographs that are also in RetinaMNIST",
    ),
)

for _one in PAPER:
    register_dataset(
        _one.name,
        _one.load,
        title=_one.title,
        task=_one.task,
        samples=_one.train[0],
        shape=_shape(_one.shape),
        aliases=_one.aliases,
        note=_one.note,
        find=_one.located,
    )
