package sqlx

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mqbridge/mqb/checkpoint"
	ckpt "github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/route"
)

// Time-outs of a writer's session. They end what hangs while this process lives;
// a frozen process is ended by its successor (Store.EndSession).
const (
	lockTimeout      = 10 * time.Second
	statementTimeout = 2 * time.Minute
	// silentTimeout frees the rows of a writer that froze while nobody took over.
	silentTimeout = time.Minute
)

// sink is a connectors.TxSink.
type sink struct {
	cfg  *Config
	spec *route.Spec
	dial *dial.Config
	tls  *tls.Config // nil: what url says
	dead *sink       // of the route's dlq, if it is in the same system
	// letterbox: this is the endpoint of the dlq.
	letterbox bool

	mu    sync.Mutex
	store *ckpt.Store // opened when first asked for
}

var _ connectors.TxSink = (*sink)(nil)

func newSink(config any, spec *route.Spec, _ connectors.Env) (connectors.Sink, error) {
	cfg := config.(*Config)
	s, err := openSink(cfg, spec)
	if err != nil {
		return nil, err
	}
	if e := spec.DeadLetters(); e != nil {
		s.letterbox = e.Config == config
		if c, ok := e.Config.(*Config); ok && c != cfg && c.system() == cfg.system() {
			if s.dead, err = openSink(c, spec); err != nil {
				return nil, fmt.Errorf("dlq: %w", err)
			}
		}
	}
	return s, nil
}

func openSink(cfg *Config, spec *route.Spec) (*sink, error) {
	if err := cfg.prepare(); err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: %w", spec.Name, err), "")
	}
	s := &sink{cfg: cfg, spec: spec}
	if cfg.TLS.Given() {
		var err error
		if s.tls, err = cfg.TLS.Client(); err != nil {
			return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: %w", spec.Name, err), "")
		}
	}
	var err error
	s.dial, err = dial.Parse(cfg.URL, dial.Options{
		TLS:             s.tls,
		ApplicationName: "mqb " + spec.Name, ConnectTimeout: cfg.AcquireTimeout,
		LockTimeout: lockTimeout, StatementTimeout: statementTimeout, IdleInTransaction: silentTimeout,
	})
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: %w", spec.Name, err), "")
	}
	return s, nil
}

// Store implements connectors.TxSink.
func (s *sink) Store(ctx context.Context) (checkpoint.Store, error) {
	st, err := s.records(ctx)
	if err != nil {
		return nil, s.classed("open the checkpoint table", err)
	}
	return st, nil
}

func (s *sink) records(ctx context.Context) (*ckpt.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != nil {
		return s.store, nil
	}
	st, err := ckpt.OpenWith(ctx, s.cfg.URL, ckpt.DefaultTable, dial.Options{
		TLS:            s.tls,
		ConnectTimeout: s.cfg.AcquireTimeout, MaxConns: s.cfg.MaxConnections, MinConns: s.cfg.MinConnections,
		MaxIdle: s.cfg.IdleTimeout, MaxConnLifetime: s.cfg.MaxLifetime,
	})
	if err != nil {
		return nil, err
	}
	s.store = st
	return st, nil
}

// Close closes the store; writers are closed by their owners.
func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil
	}
	err := s.store.Close()
	s.store = nil
	return err
}

// Check implements connectors.Sink: the table, its columns and the statement are
// looked at, nothing is written.
func (s *sink) Check(ctx context.Context) error {
	p, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	return p.Close()
}

// Prepare implements connectors.Sink: connects and prepares the statements. It
// takes no lock.
func (s *sink) Prepare(ctx context.Context, _ connectors.Partition) (connectors.Prepared, error) {
	return s.prepare(ctx)
}

func (s *sink) prepare(ctx context.Context) (*prepared, error) {
	conn, err := s.dial.Connect(ctx)
	if err != nil {
		return nil, s.classed("connect", err)
	}
	p := &prepared{sink: s, conn: conn}
	if err := p.describe(ctx); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// prepared is a connection with its statement looked at, and its session's name.
type prepared struct {
	sink    *sink
	conn    *pgx.Conn
	session string
	look    *pgconn.StatementDescription // of shapeSQL
	plan
	target  *target      // with columns: auto; nil for a table that is to be made
	letters *lettersPlan // of the dlq, where this is it or it is in the same system
	unsafe  string       // a setting of the server that voids durability, "" if none
}

// plan is how rows of a statement are written.
type plan struct {
	stmt    *statement // nil with columns: auto
	copy    bool
	types   []columnType // of the statement's values
	formats []int16
	shape   shape // of the table that an INSERT writes to
}

func (p *prepared) describe(ctx context.Context) error {
	var err error
	if p.session, err = dial.Session(ctx, p.conn); err != nil {
		return p.sink.classed("name the session", err)
	}
	if p.look, err = p.conn.PgConn().Prepare(ctx, shapeName, shapeSQL, nil); err != nil {
		return p.sink.classed("prepare the look at the table", err)
	}
	switch cfg := p.sink.cfg; {
	case p.sink.letterbox:
		p.letters, err = p.sink.prepareLetters(ctx, p.conn)
	case cfg.Columns == "auto":
		p.target, err = p.sink.findTarget(ctx, p.conn, rowsName)
	default:
		p.plan, err = p.sink.planStatement(ctx, p.conn, rowsName, cfg.stmt, cfg.useCopy())
	}
	if err != nil {
		return err
	}
	if p.sink.dead != nil {
		if p.letters, err = p.sink.dead.prepareLetters(ctx, p.conn); err != nil {
			return fmt.Errorf("dlq: %w", err)
		}
	}
	var fsync string
	if err := p.conn.QueryRow(ctx, "SHOW fsync").Scan(&fsync); err != nil {
		return p.sink.classed("read the server's settings", err)
	}
	if fsync != "on" {
		p.unsafe = "fsync = " + fsync
		// Never lower a guarantee silently (invariant 9).
		if p.sink.spec.RequiredDelivery == route.ExactlyOnce {
			return connectors.Permanent(fmt.Errorf("route %s: sqlx: the server runs with %s, so a commit may be lost in a crash", p.sink.spec.Name, p.unsafe),
				"required_delivery: exactly-once needs fsync = on")
		}
	}
	return nil
}

// planStatement looks at the types that the values of a statement have.
func (s *sink) planStatement(ctx context.Context, conn *pgx.Conn, name string, stmt *statement, copy bool) (plan, error) {
	x := plan{stmt: stmt, copy: copy}
	if stmt.table != "" {
		var err error
		if x.shape, err = readShape(ctx, conn, stmt.table); err != nil {
			return plan{}, s.classed("look at table "+stmt.table, err)
		}
	}
	var oids []uint32
	if copy {
		if err := s.checkCopy(ctx, conn, stmt.table); err != nil {
			return plan{}, err
		}
		d, err := conn.PgConn().Prepare(ctx, "", "SELECT "+stmt.copyColumns+" FROM "+stmt.table+" LIMIT 0", nil)
		if err != nil {
			return plan{}, s.classed("look at table "+stmt.table, err)
		}
		for _, f := range d.Fields {
			oids = append(oids, f.DataTypeOID)
		}
	} else {
		d, err := conn.PgConn().Prepare(ctx, rowName(name, 1), stmt.sql, nil)
		if err != nil {
			return plan{}, s.classed("prepare "+stmt.of(), err)
		}
		oids = d.ParamOIDs
	}
	if len(oids) != stmt.width() {
		return plan{}, connectors.Permanent(fmt.Errorf("route %s: sqlx: %d values for %d columns of table %s", s.spec.Name, stmt.width(), len(oids), stmt.table),
			"name the columns in insert_query")
	}
	var err error
	if x.types, err = typesOf(ctx, conn, oids); err != nil {
		return plan{}, s.classed("look at the types of the values", err)
	}
	for _, t := range x.types {
		x.formats = append(x.formats, formatOf(t.oid))
	}
	return x, nil
}

// findTarget fits the configuration to the table; nil if the table is missing and
// is to be made.
func (s *sink) findTarget(ctx context.Context, conn *pgx.Conn, name string) (*target, error) {
	op := "look at table " + s.cfg.table.quoted()
	t, err := readTable(ctx, conn, s.cfg.table)
	switch {
	case errors.Is(err, errNoTable) && s.cfg.AutoCreateTable:
		return nil, nil
	case errors.Is(err, errNoTable):
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx %s: %w", s.spec.Name, op, err), "create the table, correct its name, or set auto_create_table")
	case err != nil:
		return nil, s.classed(op, err)
	}
	x, err := newTarget(name, t, s.cfg)
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: %w", s.spec.Name, err), "")
	}
	key := s.cfg.Key
	if key == nil {
		return x, s.checkCopy(ctx, conn, t.name)
	}
	unique, err := t.isUnique(ctx, conn, key)
	if err != nil {
		return nil, s.classed(op, err)
	}
	if !unique {
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: no unique index of table %s is on exactly the key (%s)", s.spec.Name, t.name, strings.Join(key, ", ")),
			fmt.Sprintf("CREATE UNIQUE INDEX ON %s (%s)", t.name, quoted(key...)))
	}
	return x, nil
}

// checkCopy says at the start what the first row would stop at.
func (s *sink) checkCopy(ctx context.Context, conn *pgx.Conn, table string) error {
	why, err := noCopy(ctx, conn, table)
	switch {
	case err != nil:
		return s.classed("look at table "+table, err)
	case why != "":
		return connectors.Permanent(fmt.Errorf("route %s: sqlx: COPY cannot write to %s, which %s", s.spec.Name, table, why), "use an insert_query without bulk_copy")
	}
	return nil
}

func (p *prepared) Session() string { return p.session }

func (p *prepared) Close() error { return closeConn(p.conn) }

// Open implements connectors.Prepared. The fence is prepared here, since the
// table of the records is there once the claim is made.
func (p *prepared) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	if p.unsafe != "" {
		claim.Log.Warn("the server does not keep its commits through a crash", "setting", p.unsafe)
	}
	if claim.Leg == connectors.LegDeadLetters {
		w, err := p.openLetters(ctx, p.sink, claim)
		if err != nil {
			return nil, err
		}
		return &letters{w: w}, nil
	}
	w, err := p.newWriter(ctx, p.sink, claim, rowsName, p.plan, p.target)
	if err != nil {
		return nil, err
	}
	if p.sink.dead != nil {
		if w.dead, err = p.openLetters(ctx, p.sink.dead, claim); err != nil {
			return nil, fmt.Errorf("dlq: %w", err)
		}
	}
	if w.store, err = p.sink.records(ctx); err != nil {
		return nil, p.sink.classed("open the checkpoint table", err)
	}
	if w.fence, err = w.pg.Prepare(ctx, fenceName, ckpt.FenceSQL(ckpt.DefaultTable), nil); err != nil {
		return nil, p.sink.classed("prepare the fence", err)
	}
	return w, nil
}

// openLetters makes the writer of a dlq, whose sink is to.
func (p *prepared) openLetters(ctx context.Context, to *sink, claim connectors.Claim) (*writer, error) {
	if p.letters == nil {
		var err error
		if p.letters, err = to.prepareLetters(ctx, p.conn); err != nil {
			return nil, err
		}
	}
	return p.newWriter(ctx, to, claim, lettersName, p.letters.plan, p.letters.target)
}

// newWriter makes a writer of sink to on the connection.
func (p *prepared) newWriter(ctx context.Context, to *sink, claim connectors.Claim, name string, rows plan, x *target) (*writer, error) {
	w := &writer{sink: to, conn: p.conn, pg: p.conn.PgConn(), claim: claim, look: p.look, name: name, plan: rows, rowsPrepared: map[int]bool{1: true}}
	if x != nil {
		if err := x.prepareStage(ctx, p.conn); err != nil {
			return nil, to.classed("make the temporary table of upserts", err)
		}
		w.target.Store(x)
	}
	return w, nil
}

func closeConn(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return conn.Close(ctx)
}

// classed gives an error its class, once, with the route and what was being done.
func (s *sink) classed(op string, err error) error {
	if err == nil {
		return nil
	}
	class := dial.Classify(err)
	err = fmt.Errorf("route %s: sqlx %s: %w", s.spec.Name, op, described(dial.Plain(err)))
	switch class {
	case dial.ClassConnection:
		return connectors.Connection(err)
	case dial.ClassPermanent, dial.ClassData:
		return connectors.Permanent(err, s.hint(err))
	case dial.ClassSuspect:
		return fmt.Errorf("%w: %w", connectors.ErrSuspect, err)
	}
	return err
}

// described adds what the server said besides its message.
func described(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Detail == "" && pg.Where == "" {
		return err
	}
	detail := pg.Detail
	if detail == "" {
		detail = pg.Where
	}
	return fmt.Errorf("%w: %s", err, detail)
}

// wholePayload: a table alone, so that records are not taken apart.
func (s *sink) wholePayload() bool { return s.cfg.InsertQuery == "" && s.cfg.Columns == "" }

func (s *sink) hint(err error) string {
	switch dial.Code(err) {
	case dial.CodeUndefinedTable:
		if s.wholePayload() {
			return "create the table with a column payload, correct its name, or set columns: auto and auto_create_table: true"
		}
		return "create the table, or correct its name"
	case "42703":
		if s.wholePayload() {
			return "there is no such column: without columns: auto the whole record goes into the column payload"
		}
		return "the table has no such column"
	case "42704":
		return "what url has behind its question mark, and the output does not know, is a setting of the server; keys of a route do not belong there"
	case "42501":
		return "the role needs INSERT on the table, with a key also SELECT and UPDATE on it and TEMPORARY on the database; and SELECT, INSERT, UPDATE on " + ckpt.DefaultTable
	case dial.CodeProtocol:
		return "url seems to lead to a pooler: sessions are named and ended, so it has to lead to the server itself"
	case "28P01", "28000":
		return "user or password in url"
	case "3D000":
		return "create the database, or correct url"
	}
	return ""
}
