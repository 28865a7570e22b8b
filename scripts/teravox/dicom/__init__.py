"""DICOM images: headers, series, the volumes in them, and their voxels. Terms and sections are those of the standard (PS3.3)."""
