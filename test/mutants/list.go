package main

// mutant is one edit of one file and the test that has to fail with it.
type mutant struct {
	guard     string
	file      string
	old, new  string // old stands in the file once
	pkg, test string
}

const suite = "TestStore/stale_epoch"

var mutants = []mutant{
	// The comparison in each store.
	{"coordinator store: version", "checkpoint/coordinator/coordinator.go",
		`compares = append(compares, lease.VersionIs(full, int64(expected)))`, `_ = lease.VersionIs(full, int64(expected))`,
		"checkpoint/coordinator", suite},
	{"file store: one name, one writer", "checkpoint/file/file.go",
		`err := os.Link(temp, target)`, `err := os.Rename(temp, target)`,
		"checkpoint/file", "TestStore/one_winner_of_each_version"},
	{"file store: the look after the link", "checkpoint/file/file.go",
		`case now.newest() > next:`, `case false && now.newest() > next:`,
		"checkpoint/file", "TestSleepingWriterThatLinksARemovedNameIsFenced"},
	{"postgres store: version", "checkpoint/postgres/postgres.go",
		"set + ` AND version = $2::bigint`", "set + ` AND $2::bigint IS NOT NULL`",
		"checkpoint/postgres", suite},
	{"postgres, in the sink's transaction: version", "checkpoint/postgres/postgres.go",
		"set + ` AND version = $2::bigint`", "set + ` AND $2::bigint IS NOT NULL`",
		"connectors/sqlx", "TestFenceAloneStopsAZombieWhoseSessionLives"},
	{"postgres, in the sink's transaction: no row aborts", "checkpoint/postgres/postgres.go",
		`SELECT 1/count(*) FROM u`, `SELECT count(*) FROM u`,
		"checkpoint/postgres", "TestFenceStatementAbortsTheTransaction"},
	{"mysql store: version", "checkpoint/mysql/mysql.go",
		`comparison := "version = ?"`, `comparison := "? IS NOT NULL"`,
		"checkpoint/mysql", suite},
	{"sqlite store: version", "checkpoint/sqlite/sqlite.go",
		"comparison := `version = ?`", "comparison := `? IS NOT NULL`",
		"checkpoint/sqlite", "TestStore/wal/stale_epoch"},
	{"mongodb store: version", "checkpoint/mongodb/mongodb.go",
		`if checkpoint.Fenced {`, `if false {`,
		"checkpoint/mongodb", suite},
	{"s3 store: If-Match and If-None-Match", "checkpoint/s3/s3.go",
		`case !checkpoint.Fenced:`, `case true:`,
		"checkpoint/s3", suite},
	{"s3 store: the probe of the server", "checkpoint/s3/s3.go",
		`if err := s.probeOnce(ctx); err != nil {`, `if err := error(nil); err != nil {`,
		"checkpoint/s3", "TestStoreThatComparesWhenThePutBeginsIsRefused"},

	// Claim and commit, above all stores.
	{"claim: refused below the stored epoch", "checkpoint/claim.go",
		`case Fenced && fences(old, req):`, `case false && fences(old, req):`,
		"checkpoint/memory", suite},
	{"claim: the own epoch is written", "checkpoint/claim.go",
		`next.Epoch, next.Run, next.Session = req.Epoch, req.Run, req.Session`, `next.Run, next.Session = req.Run, req.Session`,
		"checkpoint/memory", "TestStore/claim,_commit,_claim"},
	{"claim: anything is written at all", "checkpoint/claim.go",
		`err = store.Swap(ctx, req.Key, old.Version, next)`,
		`if exists {
			return Claimed{Record: old, Resumed: true}, nil
		}
		err = store.Swap(ctx, req.Key, old.Version, next)`,
		"checkpoint/memory", suite},
	{"commit: another run's record is no success", "checkpoint/claim.go",
		`case Fenced && (now.Epoch != held.Epoch || now.Run != held.Run):`, `case false && (now.Epoch != held.Epoch || now.Run != held.Run):`,
		"checkpoint/memory", "TestStore/stale_run_of_the_same_epoch"},
	{"the claimed mark is compared", "checkpoint/claim.go",
		"f := req.Floor\n\tif f == nil {", "f := req.Floor\n\tif true || f == nil {",
		"checkpoint/memory", "TestStore/record_below_the_floor"},
	{"the claimed mark reaches the claim", "actors/attempt.go",
		`if mark != nil {`, `if false && mark != nil {`,
		"test/scenarios", "TestStoreThatFellBackToAnOlderCopyStopsThePartition"},
	{"claim: the session before is ended", "checkpoint/claim.go",
		`if session == "" || session == own {`, `if true || session == "" || session == own {`,
		"connectors/sqlx", "TestFrozenOwnerIsEndedByItsSuccessorAndWritesNothingWhenItWakes"},

	// Ownership.
	{"the gate reads the clock", "lease/session.go",
		`return h.id != 0 && s.o.Now() < h.deadline }`, `return h.id != 0 }`,
		"lease", "TestAProcessThatWakesFindsTheGateClosedBeforeAnyTimerRan"},
	{"the gate is anchored before the keepalive", "lease/session.go",
		`s.install(&held{id: id, generation: h.generation, deadline: s.deadline(sent)})`,
		`s.install(&held{id: id, generation: h.generation, deadline: s.deadline(s.o.Now())})`,
		"lease", "TestTheDeadlineIsAnchoredBeforeTheKeepaliveWasSent"},
	{"the gate is asked before a commit", "actors/pipeline/committer.go",
		"if err := c.r.Claim.Gate(); err != nil {\n\t\treturn", "if err := error(nil); err != nil {\n\t\treturn",
		"actors/pipeline", "TestClosedGateWritesNothingMore"},
	{"acquire: an epoch goes to one run", "lease/owners.go",
		`ModRevisionIs(epochKey, rev(got[1])), //`, `//`,
		"lease", "TestAcquireComparesEverythingItRead"},
	{"the scheduler's writes compare its term", "cluster/scheduler.go",
		`append(s.election.guard(), compares...)`, `append([]lease.Compare(nil), compares...)`,
		"cluster", "TestFrozenLeadersWriteIsRefusedAfterItWokeUp"},

	// Parts.
	{"the intent is committed before its part", "actors/pipeline/intent.go",
		`if err := c.position(ctx, last, s.intent); err != nil {`, `if err := c.position(ctx, last, nil); err != nil {`,
		"actors/pipeline", "TestCrashAtAnyStepOfThePartProtocol"},
	{"an intent names its generation", "actors/pipeline/intent.go",
		`in.Generation = c.r.Claim.Generation`, `_ = in.Generation`,
		"actors/pipeline", "TestInheritedIntentIsFinishedAsItStands"},
	{"an inherited intent keeps its generation", "checkpoint/claim.go",
		`if len(next.Intents) == 0 {`, `if true {`,
		"checkpoint/memory", "TestStore/stale_generation;_intents_keep_theirs"},
	{"the spec of an intent's generation is kept", "cluster/catalog/apply.go",
		`needed[in.Generation] = true`, `_ = in`,
		"cluster/catalog", "TestOlderSpecsStayWhileARecordNamesThem"},
	{"a part is never replaced", "connectors/file/create_linux.go",
		`err := os.Link(tmp, final)`, `err := os.Rename(tmp, final)`,
		"connectors/file", "TestPartThatIsThereIsKept"},
}
