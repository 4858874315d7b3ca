// Package scenarios lists what a system of leases and fences has to survive, with
// the tests that show it, and holds those tests that belong to no package alone:
// real processes, disks, clocks and networks that misbehave.
package scenarios

import (
	"fmt"
	"strings"
)

// Test names a test of a package below the module's root, with a subtest behind a
// slash where only that one counts.
type Test struct{ Package, Name string }

// Scenario is one row of docs/scenarios.md.
type Scenario struct {
	// ID numbers the scenario; "" where it has none.
	ID string
	// What happens, and what must hold then.
	What, Holds string
	Tests       []Test
	// Open is what has no test, since it is not built.
	Open string
}

// Group is a table of docs/scenarios.md.
type Group struct {
	Title string
	Rows  []Scenario
}

func in(pkg string, names ...string) (tests []Test) {
	for _, n := range names {
		tests = append(tests, Test{pkg, n})
	}
	return tests
}

func all(tests ...[]Test) (out []Test) {
	for _, t := range tests {
		out = append(out, t...)
	}
	return out
}

// stores are the packages in which a behaviour of the stores' suite is run for
// this list; every store runs the whole suite in its own tests.
func stores(behaviour string) []Test { return in("checkpoint/memory", "TestStore/"+behaviour) }

const here = "test/scenarios"

// List is every scenario, as the page has them.
var List = []Group{
	{"Owners, leases, coordinator", []Scenario{
		{ID: "1", What: "an owner is frozen longer than its lease and wakes in the middle of a write",
			Holds: "the write changes nothing, the partition stops quietly, no crash loop",
			Tests: all(in("test/e2e", "TestWokenNodeStopsAtItsGate", "TestKafkaToPostgresExactlyOnceThroughKillFreezeAndFreezeInsideTransaction"),
				in("connectors/file", "TestSinkConformance/json/late_publish_of_a_former_owner_changes_nothing"))},
		{ID: "2", What: `frozen between "I may write" and the write`, Holds: "refused: the comparison is in the write",
			Tests: all(in(here, "TestZombieIsRefusedByEveryStore"), in("test/e2e", "TestWriteOfAZombieFrozenBetweenCheckAndWriteIsRefusedByTheStore"))},
		{ID: "3", What: "an old write arrives after the successor's first one", Holds: "refused, although it was valid when it was sent",
			Tests: all(in(here, "TestWriteThatArrivesAfterTheSuccessorsClaimIsRefused"), in("connectors/sqlx", "TestFenceAloneStopsAZombieWhoseSessionLives"),
				in("checkpoint/mongodb", "TestDelayedUpdateAfterTheSuccessorsClaimIsRefused"), in("checkpoint/s3", "TestDelayedPutAfterTheSuccessorsClaimIsRefused"), stores("stale_epoch"))},
		{ID: "4", What: "a successor has claimed and not written yet, then the old write arrives", Holds: "refused: the claim itself raises the version",
			Tests: all(in(here, "TestWriteThatArrivesAfterTheSuccessorsClaimIsRefused"), stores("concurrent_claims_never_lower_the_epoch"))},
		{ID: "5", What: "an owner is cut off from the coordinator, its output is not", Holds: "it stops at its own deadline, before the lease can end",
			Tests: all(in(here, "TestOwnerCutOffFromTheCoordinatorStopsBeforeItsSuccessorBegins"), in("cluster", "TestCutOffNodeComesBackWithNewEpochs"))},
		{ID: "6", What: "an owner is cut off from its output or input, the coordinator is there",
			Holds: "it keeps the lease, reads no further, settles nothing, gives the partition back after `give_up_after`",
			Tests: all(in(here, "TestOwnerCutOffFromItsOutputKeepsTriesGivesUpAndGoesOn"), in("actors", "TestRunsThatGetNowhereBackOffAndGiveUp"),
				in("test/e2e", "TestUnreachableBrokerAtStartIsRetriedWithBackoff"), in("connectors/kafka", "TestBrokerKilledAndStartedAgainWhileReading"))},
		{ID: "7", What: "keepalives go out, replies are lost", Holds: "counts as lost",
			Tests: all(in(here, "TestOwnerCutOffFromTheCoordinatorStopsBeforeItsSuccessorBegins/replies_are_lost"), in("lease", "TestTheDeadlineIsAnchoredBeforeTheKeepaliveWasSent"))},
		{ID: "8", What: "the wall clock jumps", Holds: "no effect: no decision reads it (invariant 7)",
			Tests: in(here, "TestWallClockThatJumpsDecidesNothing")},
		{ID: "9", What: "a clock runs slow", Holds: "the margin is larger than the error",
			Tests: all(in(here, "TestGateClosesBeforeTheLeaseEndsOnASlowClock"), in("lease", "TestGateOpensStaysOpenAndClosesBeforeTheLeaseCanEnd"))},
		{ID: "10", What: "the lease ends in the middle of many commits", Holds: "what was committed stays, the rest is read again",
			Tests: in("actors", "TestCoordinatorOutageSuspendsAndANewRunFollows")},
		{ID: "11", What: "a frozen scheduler wakes beside its successor", Holds: "its writes are refused",
			Tests: in("cluster", "TestFrozenLeadersWriteIsRefusedAfterItWokeUp", "TestLeaderThatLosesAndWinsItsSeatListsUnderItsNewTerm")},
		{ID: "12", What: "a restart and a hand-off meet on one node", Holds: "one run at a time",
			Tests: all(in("lease", "TestARestartOfTheSameNodeTakesANewEpoch"), in("cluster", "TestSecondProcessOfANameIsRefusedUntilTheFirstIsGone"))},
		{ID: "13", What: "the scheduler dies in the middle of its writes", Holds: "its successor goes on from what is there",
			Tests: in("cluster", "TestLeaderKilledInTheMiddleOfItsWritesIsSucceeded")},
		{ID: "14", What: "the coordinator's leader changes; the coordinator is gone for 30 s", Holds: "runs go on until their deadline, suspend, and new ones go on after",
			Tests: all(in(here, "TestCoordinatorOutageOf30SecondsSuspendsAndLosesAndDoublesNothing"), in("lease/raft", "TestANewLeaderTakesOverAndNothingIsLost"),
				in("lease/etcd", "TestANewLeaderTakesOverAndNothingIsLost"))},
		{ID: "15", What: "the coordinator comes back from an older backup", Holds: "no epoch counts twice",
			Tests: all(in(here, "TestCoordinatorRestoredFromAnOlderBackup"), in("actors", "TestFencedByAnOperatorTheOwnerStartsOver"),
				in("lease/etcd", "TestAWatchDoesNotGoOnInAStoreRestoredFromABackup"))},
		{ID: "16", What: "a watcher falls behind what is kept", Holds: "it lists again and misses nothing",
			Tests: all(in("lease", "TestMirrorFollowsThroughCutsAndCompaction"), in("lease/etcd", "TestCompactionWhileAWatcherIsBehindLosesNothing"))},
		{ID: "17", What: "many leases end at once", Holds: "bounded moves, no herd",
			Tests: all(in(here, "TestMassLeaseExpiryMovesOnlyWhatWasLost"), in("cluster", "TestTenThousandPartitionsArePlacedAndTakenOver"),
				in("cluster/plan", "TestPlanHandsOffNoMoreThanTheBudgetByChoice"))},
		{ID: "27", What: "a node comes and goes", Holds: "partitions do not follow it",
			Tests: all(in(here, "TestNodeThatFlapsIsNotFollowed"), in("cluster", "TestFlappingNodeIsNotFollowed"), in("cluster/plan", "TestPlanUnsettledNodeGetsNothingWhileOthersCan"))},
		{ID: "28", What: "partitions are added", Holds: "they are found, and read from their beginning",
			Tests: all(in("cluster", "TestNewPartitionsAppearWithinSecondsAndVanishedOnesStay"), in("test/e2e", "TestNewAndGrowingFilesAreNoticed"),
				in("connectors/kafka", "TestNewPartitionsAreFound"))},
	}},
	{"Checkpoints and crashes", []Scenario{
		{ID: "18", What: "the store falls back to an older copy", Holds: "regression is noticed, nothing goes on silently",
			Tests: all(in(here, "TestStoreThatFellBackToAnOlderCopyStopsThePartition"), stores("record_went_back"), stores("record_below_the_floor"),
				in("connectors/file", "TestSinkConformance/json/part_beyond_the_position_is_refused"))},
		{ID: "19", What: "a write succeeded, its reply was lost", Holds: "read again; our own write is success",
			Tests: all(in(here, "TestLostReplyOfAWriteIsLookedForAndIsSuccess"), stores("lost_reply_is_success"), in("connectors/sqlx", "TestLostReplyOfCommitIsNotWrittenTwice"),
				in("checkpoint/mongodb", "TestLostReplyOfAnUpdateIsSuccess"), in("checkpoint/s3", "TestLostReplyOfAPutIsSuccess"), in("cluster", "TestLostRepliesChangeNothingInTheEnd"))},
		{ID: "20", What: "a torn record", Holds: "an error; nothing falls back by itself",
			Tests: all(stores("torn_record"), in("checkpoint", "TestTornRecordIsNeverDecoded"), in("checkpoint/file", "TestTornNewestVersionNeverFallsBackToTheOneBefore"))},
		{ID: "21", What: "a crash after the write, before the position", Holds: "T1 and T2: nothing twice. T3: what stands since the last commit",
			Tests: all(in("test/e2e", "TestKillBetweenAnyTwoStepsOfAPart", "TestKillAtAnyStepOfWritingToKafkaLosesNothing"), in("actors/pipeline", "TestCrashAtAnyStepOfThePartProtocol", "TestCommitsThatFailAreRepeatedByTheNextRun"),
				in("connectors/sqlx", "TestServerKilledWhileCommitting"))},
		{ID: "22", What: "a crash after the position, before the source is told", Holds: "nothing lost, nothing twice",
			Tests: all(in("test/e2e", "TestKillBetweenAnyTwoStepsOfAPart"), in("actors/pipeline", "TestSettlementCutOffByTheEndOfTheRunIsRepeated"))},
		{ID: "23", What: "the source dropped what we had not read", Holds: "a gap, never a silent jump",
			Tests: all(in("connectors/kafka", "TestRetentionPassingThePositionIsAGapAndNoJump"), in("connectors/file", "TestTruncatedReplacedAndRewrittenFilesAreGaps"))},
		{ID: "24", What: "a record that cannot be handled", Holds: "it costs itself alone; `on_error` decides",
			Tests: all(in("test/e2e", "TestMalformedRowCostsThatRowAlone", "TestWhatKafkaRefusesIsDeadLetteredInKafkaWhateverIsKilled"), in("connectors/sqlx", "TestBadRowsAreFoundAmongThousands"))},
		{ID: "25", What: "SIGTERM with full buffers", Holds: "what fits is committed, the rest goes back to the source, ownership goes last",
			Tests: all(in(here, "TestSIGTERMWithFullBuffersAndADeadlineThatIsTooShort"), in("actors", "TestDrainCommitsWhatWasRead", "TestDrainGivesBackWhatWaitsInAMiddleware"),
				in("cmd/mqbd", "TestDefaultsMakeAWorkingNodeThatDrainsOnSIGTERM", "TestSecondSignalStopsAtOnce"))},
		{ID: "26", What: "one route panics again and again", Holds: "the others go on",
			Tests: in("actors", "TestPanicStormInOneRouteLeavesTheOthersAlone")},
		{ID: "29", What: "object stores answer 409 and 412", Holds: "retry and lost are told apart", Open: "leftovers of multipart uploads",
			Tests: in("checkpoint/s3", "TestConflictOfConcurrentRequestsIsRetried", "TestGoneRecordIsRegressedWhateverTheAnswer")},
		{ID: "30", What: "a Kafka producer of an older epoch; commit markers on their way", Holds: "fenced; positions wait for the markers", Open: "transactions of the output",
			Tests: in("connectors/kafka", "TestTransactionMarkersAndAbortedRecordsMoveThePosition")},
		{ID: "31", What: "disk full; no file descriptor left", Holds: "stops, says so, goes on by itself, loses nothing",
			Tests: all(in(here, "TestOutOfFileDescriptorsLosesNothing"), in("connectors/file", "TestDiskFullLosesNothing"), in("test/e2e", "TestDiskFullWhileWritingAPartLosesNothing"))},
	}},
	{"Of this protocol", []Scenario{
		{What: "without the fence and the gate a zombie doubles rows", Holds: "the tests can fail",
			Tests: in("test/e2e", "TestWithoutTheFenceAZombieDoublesRows")},
		{What: "an owner froze inside its transaction, with locks", Holds: "the successor ends its session and writes within 2 × TTL",
			Tests: all(in(here, "TestZombieThatHoldsTheSinksLocksIsRefusedAndDelaysNobody"), in("connectors/sqlx", "TestFrozenOwnerIsEndedByItsSuccessorAndWritesNothingWhenItWakes"),
				in("checkpoint/mysql", "TestFrozenOwnerThatHoldsTheRowLosesIt"))},
		{What: "the id of that session was used again", Holds: "the newer session is spared",
			Tests: all(in("dial/postgres", "TestEndSessionSparesAReusedProcessID"), in("dial/mysql", "TestEndSessionSparesAReusedConnectionID"))},
		{What: "a late write of an earlier try", Holds: "is not taken for the next one",
			Tests: stores("late_write_of_a_try_that_was_given_up_is_no_success_of_the_next_one")},
		{What: "a fence that matches no row", Holds: "aborts the transaction",
			Tests: in("checkpoint/postgres", "TestFenceStatementAbortsTheTransaction")},
		{What: "a row that an UPDATE leaves as it was", Holds: "counts as matched",
			Tests: in("dial/mysql", "TestUnchangedRowIsCounted")},
		{What: "a lock time-out undoes one statement", Holds: "no transaction is left open",
			Tests: in("checkpoint/mysql", "TestLockTimeoutLeavesNoTransactionOpen")},
		{What: "one key twice in a transaction", Holds: "upserted in order",
			Tests: in("connectors/sqlx", "TestRepeatedKeyInOneTransactionIsUpsertedInOrder")},
		{What: "a plain read while a commit is pending", Holds: "waits for its outcome",
			Tests: all(in("checkpoint/postgres", "TestLoadWaitsForAPendingCommit"), in("checkpoint/mysql", "TestLoadWaitsForAPendingCommit"), in("checkpoint/sqlite", "TestLoadWaitsForAPendingCommit"))},
		{What: "an object store that compares when a PUT begins", Holds: "is refused by name",
			Tests: in("checkpoint/s3", "TestStoreThatComparesWhenThePutBeginsIsRefused")},
		{What: "a file's name is linked anew by a writer that slept", Holds: "it is fenced; nobody reads it",
			Tests: in("checkpoint/file", "TestSleepingWriterThatLinksARemovedNameIsFenced")},
		{What: "a frozen raft leader wakes", Holds: "no stale read, no dead lease kept",
			Tests: in("lease/raft", "TestALeaderThatWakesServesNoStaleReadAndKeepsNoDeadLease")},
		{What: "kill -9 of coordinator members in the middle of writes", Holds: "what was acknowledged is there",
			Tests: in("lease/raft", "TestWhatWasAcknowledgedSurvivesKill9")},
		{What: "a voter lost its disk", Holds: "it joins as new and never votes twice",
			Tests: in("lease/raft", "TestAVoterThatLostItsDiskJoinsAsNew")},
		{What: "a changed route while a part is promised", Holds: "the old generation finishes it",
			Tests: all(in("actors", "TestNewGenerationFinishesThePromiseOfTheOld"), in("cluster/catalog", "TestOlderSpecsStayWhileARecordNamesThem"))},
		{What: "a second route on one directory; the same route re-created", Holds: "refused; nothing twice",
			Tests: in("test/e2e", "TestSecondRouteOnTheSameDirectoryIsRefused", "TestDeletedAndRecreatedRouteDoublesNothing")},
		{What: "a reset while the owner runs", Holds: "the owner is fenced",
			Tests: all(in("cluster/catalog", "TestResetFencesTheRunningOwner"), in("test/e2e", "TestCheckpointResetOnARunningRouteLosesAndDoublesNothing"))},
		{What: "a run ignores its cancellation", Holds: "visible, and taken away after its time",
			Tests: all(in("cluster", "TestWedgedOwnerLosesItsPartitionOnlyAfterItsTime"), in("cluster/plan", "TestPlanTakesAWedgedPartitionElsewhereAndKeepsItThere"))},
		{What: "group offsets right after a transaction; a group that is in use", Holds: "the record is the authority; refuses the route",
			Tests: in("connectors/kafka", "TestGroupOffsetsStartAndMirror", "TestGroupWithLiveMembersIsRefused")},
	}},
}

// Page is the part of docs/scenarios.md that the list makes.
func Page() string {
	var b strings.Builder
	for i, g := range List {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %s\n\n| # | Scenario | Must hold | Test |\n|---|---|---|---|\n", g.Title)
		for _, s := range g.Rows {
			var tests []string
			for _, t := range s.Tests {
				tests = append(tests, fmt.Sprintf("`%s` (%s)", t.Name, t.Package))
			}
			if s.Open != "" {
				tests = append(tests, "not built: "+s.Open)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.ID, s.What, s.Holds, strings.Join(tests, ", "))
		}
	}
	return b.String()
}
