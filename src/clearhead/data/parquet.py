"""The texts of a parquet file, row by row: one column of strings, a few rows at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.data.compression import FREE_EXPANSION, MOST_EXPANSION
from clearhead.errors import DataError, UsageError

_ROWS = 4  # decoded at once: a long string that a million rows share is there so many times
_BUFFER = 1 << 20  # bytes read ahead
_MOST_HEADER = 1 << 27  # bytes of a string or entries of a list in the footer: of a file's description of itself
_MOST_COLUMNS = 8  # that a message names


def parquet_texts(path: Path, column: str) -> Iterator[tuple[int, str]]:
    """The number of each row, from 1, and the string in that column; rows without one are passed over.

    Memory does not grow with the file, its row groups, or how often a long string is repeated.

    Raises:
        DataError: it is no whole parquet file, has no such column of strings, or unpacks to far more than any text.
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(f"{path} is parquet, which needs an extra: pip install 'clearhead[parquet]'") from None
    limits = {"thrift_string_size_limit": _MOST_HEADER, "thrift_container_size_limit": _MOST_HEADER}
    try:
        with parquet.ParquetFile(path, **limits) as file:
            _check_column(file.schema_arrow, path, column, pyarrow.types)
            left = FREE_EXPANSION + MOST_EXPANSION * path.stat().st_size
            if _unpacked_size(file.metadata, column) > left:
                raise _bomb(path)
        with parquet.ParquetFile(
            path,
            buffer_size=_BUFFER,
            pre_buffer=False,
            **limits,
        ) as file:
            number = 0
            for batch in file.iter_batches(_ROWS, columns=[column], use_threads=False):
                for value in batch.column(0):
                    number += 1
                    text = value.as_py()
                    if text is not None:
                        left -= len(text)
                        yield number, text
                if left < 0:
                    raise _bomb(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: '{column}' holds a string that is not UTF-8 ({error.reason})") from None
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's own
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise DataError(f"{path} is no whole parquet file ({reason}); make or fetch it again") from None


def _bomb(path: Path) -> DataError:
    return DataError(
        f"{path} unpacks to more than {MOST_EXPANSION} times its size, which no text does; "
        "if that is meant, write its texts to a .jsonl"
    )


def _unpacked_size(metadata: Any, column: str) -> int:
    """Of the column in all row groups, as the file itself says; what is repeated is repeated later."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)


def _check_column(schema: Any, path: Path, column: str, types: Any) -> None:
    field = schema.field(column) if column in schema.names else None
    kind = None if field is None else field.type
    if kind is not None and types.is_dictionary(kind):
        kind = kind.value_type
    if kind is not None and (types.is_string(kind) or types.is_large_string(kind)):
        return
    names = [f"{entry.name} ({entry.type})" for entry in schema][:_MOST_COLUMNS]
    more = ", ..." if len(schema.names) > _MOST_COLUMNS else ""
    raise DataError(
        f"{path} has no column '{column}' of strings; it has {', '.join(names) or 'no columns'}{more}: "
        "name one with `data.text_column`"
    )
