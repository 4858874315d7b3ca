package mysql

// InUse is the number of connections that a transaction or a call holds.
func (s *Store) InUse() int { return s.db.Stats().InUse }
