package file

// RecordDir is the directory of a record, for tests that damage it.
func (s *Store) RecordDir(key string) string { return s.path(key) }

// Link is link.
func Link(temp, target string) error { return link(temp, target) }
