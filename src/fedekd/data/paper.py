"""The paper's six datasets: where they are published, what they hold, and how the paper trains on them."""

from __future__ import annotations

from fedekd.data import formats
from fedekd.data.published import Published, Remote, register_published

PRESET = {"rounds": 5, "epochs": 2, "batch_size": 64, "lr": 1e-4}
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
ZENODO = "https://zenodo.org/records/"


def _medmnist(
    name: str,
    title: str,
    task: str,
    *,
    train: tuple[int, ...],
    classes: int,
    channels: int,
    md5: str,
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
        remotes=(Remote(f"{ZENODO}10519652/files/{file}?download=1", md5),),
        preset=PRESET,
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
        remotes=(
            Remote(FASHION + "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Remote(FASHION + "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Remote(FASHION + "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Remote(FASHION + "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        preset=PRESET,
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
        remotes=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                {
                    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
                },
            ),
        ),
        preset=PRESET,
        publisher="A. Krizhevsky, University of Toronto (cs.toronto.edu/~kriz/cifar.html)",
        labels=tuple(THINGS.split(",")),
    ),
    _medmnist(
        "octmnist",
        "OCTMNIST",
        "classification",
        train=(97477,),
        classes=4,
        channels=1,
        md5="c68d92d5b585d8d81f7112f81e2d0842",
        labels=tuple(EYES.split(",")),
    ),
    _medmnist(
        "organamnist",
        "OrganAMNIST",
        "classification",
        train=(34561, 34581),
        classes=11,
        channels=1,
        md5="68e3f8846a6bd62f0c9bf841c0d9eacc",
        labels=tuple(ORGANS.split(",")),
    ),
    _medmnist(
        "retinamnist",
        "RetinaMNIST",
        "regression",
        train=(1080,),
        classes=5,
        channels=3,
        md5="bd4c0672f1bba3e3a89f0e4e876791e4",
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
        # The publisher's record lists this archive's md5, which is not known here. What stands in for it: the archive's
        # own checksums of its members, and reading the whole train split before the files get their names.
        remotes=(
            Remote(
                ZENODO + "7884735/files/dr_regular.zip?download=1",
                None,
                {
                    "images.hdf5": None,
                    "info.yaml": None,
                    "splits/": None,
                    "original_splits/": None,
                    "task_labels/": None,
                },
            ),
        ),
        preset=PRESET,
        publisher="MedIMeta, regular fundus (zenodo.org/records/7884735)",
        aliases=("dr", "diabetic retinopathy (regular fundus)"),
        note="grades 0 to 4; photographs that are also in RetinaMNIST",
    ),
)

for _one in PAPER:
    register_published(_one)
