package sqlite

import "context"

// Pragma is the value of a setting on the store's connection.
func (s *Store) Pragma(ctx context.Context, name string) (v string, err error) {
	err = s.db.QueryRowContext(ctx, "PRAGMA "+name).Scan(&v)
	return v, err
}
