package harness

import "testing"

func TestPostgresKeepsCommittedRowsThroughKill(t *testing.T) {
	s := StartPostgres(t)
	url := s.NewDatabase(t)
	PostgresExec(t, url, "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	s.Kill()
	s.Restart(t)
	if got := PostgresValue[int](t, url, "SELECT a FROM t"); got != 1 {
		t.Fatalf("got %d", got)
	}
	if got := PostgresValue[string](t, url, "SHOW fsync"); got != "on" {
		t.Fatalf("fsync is %s", got)
	}
}

func TestPostgresIsSharedWithDatabasesApart(t *testing.T) {
	a, b := Postgres(t), Postgres(t)
	if a != b {
		t.Fatal("two servers")
	}
	if a.NewDatabase(t) == b.NewDatabase(t) {
		t.Fatal("one database")
	}
}
