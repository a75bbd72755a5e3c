"""Examples from files, a module for each kind: pairs, labelled texts, conversations and others."""
