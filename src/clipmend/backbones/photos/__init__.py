"""``"photos"``: real photographs searched offline, through an image classifier and the names of its classes (ConSE)."""

from clipmend.backbones.photos.encoder import PhotosEncoder, load_photos
from clipmend.backbones.photos.samples import demo_photos

__all__ = ["PhotosEncoder", "demo_photos", "load_photos"]
