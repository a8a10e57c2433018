"""`ablate`: does this change to a Vision Transformer help, and how sure are we?"""

__version__ = "0.1.0"
