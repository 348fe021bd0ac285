"""What a file is that no reader takes: said truly, and with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.cli.app import main

VTI = """<?xml version="1.0"?>
<VTKFile type="{}" version="1.0" byte_order="LittleEndian"><{} WholeExtent="0 1 0 1 0 0"/></VTKFile>
"""
PLY = b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n0\n"
MSH = b"$MeshFormat\n4.1 0 8\n$EndMeshFormat\n$Nodes\n0 0 0 0\n$EndNodes\n"
LEGACY = "# vtk DataFile Version 3.0\nflow\nASCII\nDATASET {}\nDIMENSIONS 2 2 1\n"
OF_A_GRID, OF_A_MESH = (
    "which is not read yet; write its arrays",
    "write its `points`, its `cells` and the fields",
)


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert ended.value.code
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.parametrize(
    ("name", "content", "kind", "remedy"),
    [
        ("a.vti", VTI.format("ImageData", "ImageData").encode(), "a VTK image, a grid", OF_A_GRID),
        ("a.xml", VTI.format("ImageData", "ImageData").encode(), "a VTK image, a grid", OF_A_GRID),
        ("a.VTR", VTI.format("RectilinearGrid", "RectilinearGrid").encode(), "a VTK grid", OF_A_GRID),
        ("a.vtu", VTI.format("UnstructuredGrid", "UnstructuredGrid").encode(), "a VTK mesh", OF_A_MESH),
        ("a.vtk", LEGACY.format("STRUCTURED_POINTS").encode(), "a VTK image, a grid", OF_A_GRID),
        ("a.vtk", LEGACY.format("UNSTRUCTURED_GRID").encode(), "a VTK mesh", OF_A_MESH),
        ("a.ply", PLY, "a PLY mesh", OF_A_MESH),
        ("a.msh", MSH, "a Gmsh mesh", OF_A_MESH),
        ("fluent.msh", b'(0 "GAMBIT to Fluent File")\n(2 2)\n', "a mesh", OF_A_MESH),
        ("a.grib", b"GRIB\0\0\0\2", "a GRIB file", "turn it into netCDF"),
        ("a.pkl", b"\x80\x04}.", "a pickle, which could run code", "write its arrays with numpy.savez"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_whole_file_of_a_kind_that_is_not_read_is_called_what_it_is_and_not_damaged(
    name: str, content: bytes, kind: str, remedy: str, inside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(content)
    path = tmp_path / "data" if inside else tmp_path / "data" / name
    for words in (("data", "info"), ("data", "validate"), ("init", "--out", str(tmp_path / "c.yaml"))):
        text = complaint(capsys, *words, str(path))
        assert f"{path}: {f'holds {name},' if inside else 'is'} {kind}" in text, text
        assert remedy in text
        assert "damaged" not in text


def test_a_folder_whose_files_nobody_knows_is_not_called_by_a_config_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.yaml").write_text("dims: [x]\n")
    assert "holds no .hdf5 file, nor anything else that can be read" in complaint(capsys, "data", "info", str(tmp_path))
