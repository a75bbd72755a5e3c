"""Models as CTranslate2 folders."""
