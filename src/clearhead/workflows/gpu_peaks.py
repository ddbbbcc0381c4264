"""What GPUs multiply at most, as their makers' data sheets have it: dense products, without sparsity."""

# A piece of the name that the driver gives -> 10^12 operations per second, in bfloat16 on tensor cores and in float32
# without them. The first piece that fits counts, so the longer names of a kind come before the shorter.
PEAKS: tuple[tuple[str, float | None, float | None], ...] = (
    ("B200", 2250.0, None),
    ("H200", 989.4, 66.9),
    ("GH200", 989.4, 66.9),
    ("H100 NVL", 835.5, 60.0),
    ("H100 PCIe", 756.5, 51.2),
    ("H100", 989.4, 66.9),
    ("H800", 989.4, 66.9),
    ("A100", 312.0, 19.5),
    ("A800", 312.0, 19.5),
    ("A30", 165.0, 10.3),
    ("A10G", 70.0, 35.0),
    ("L40S", 362.0, 91.6),
    ("L4", 121.0, 30.3),
    ("RTX 4090", 165.2, 82.6),
    ("RTX 3090", 71.0, 35.6),
    ("V100", None, 15.7),
    ("T4", None, 8.1),
    ("MI300X", 1307.4, 163.4),
)
OTHER_CARDS = {"Ti", "SUPER", "D", "Laptop", "Max"}  # after the name of a card, the name of a slower or a faster one


def gpu_peak(name: str, *, bfloat16: bool) -> float | None:
    """Operations per second at most of the GPU that the driver calls `name`; None where that is not known."""
    spaced = name.replace("-", " ")
    for piece, in_bfloat16, in_float32 in PEAKS:
        _, fits, after = f" {spaced} ".partition(f" {piece} ")
        if fits:
            if OTHER_CARDS & set(after.split()[:1]):
                return None
            tera = in_bfloat16 if bfloat16 else in_float32
            return None if tera is None else 1e12 * tera
    return None
