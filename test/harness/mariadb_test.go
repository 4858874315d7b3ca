package harness

import "testing"

func TestMariaDBKeepsCommittedRowsThroughKill(t *testing.T) {
	s := StartMariaDB(t)
	db := s.NewDatabase(t)
	MariaDBExec(t, s.Connect(t, db), "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	s.Kill()
	s.Restart(t)
	if got := MariaDBValue[int](t, s.Connect(t, db), "SELECT a FROM t"); got != 1 {
		t.Fatalf("got %d", got)
	}
}

func TestMariaDBIsSharedWithDatabasesApart(t *testing.T) {
	a, b := MariaDB(t), MariaDB(t)
	if a != b {
		t.Fatal("two servers")
	}
	if a.NewDatabase(t) == b.NewDatabase(t) {
		t.Fatal("one database")
	}
}
