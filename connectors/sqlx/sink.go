package sqlx

import (
	"context"
	"errors"
	"fmt"
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

	mu    sync.Mutex
	store *ckpt.Store // opened when first asked for
}

var _ connectors.TxSink = (*sink)(nil)

func newSink(config any, spec *route.Spec, _ connectors.Env) (connectors.Sink, error) {
	cfg := config.(*Config)
	if err := cfg.prepare(); err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: %w", spec.Name, err), "")
	}
	d, err := dial.Parse(cfg.URL, dial.Options{
		ApplicationName: "mqb " + spec.Name, ConnectTimeout: cfg.AcquireTimeout,
		LockTimeout: lockTimeout, StatementTimeout: statementTimeout, IdleInTransaction: silentTimeout,
	})
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: sqlx: %w", spec.Name, err), "")
	}
	return &sink{cfg: cfg, spec: spec, dial: d}, nil
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
	types   []uint32 // of the statement's values
	unsafe  string   // a setting of the server that voids durability, "" if none
}

func (p *prepared) describe(ctx context.Context) error {
	var err error
	if p.session, err = dial.Session(ctx, p.conn); err != nil {
		return p.sink.classed("name the session", err)
	}
	stmt := p.sink.cfg.stmt
	if p.sink.cfg.useCopy() {
		d, err := p.conn.PgConn().Prepare(ctx, "", "SELECT "+stmt.copyColumns+" FROM "+stmt.copyTable+" LIMIT 0", nil)
		if err != nil {
			return p.sink.classed("look at table "+stmt.copyTable, err)
		}
		for _, f := range d.Fields {
			p.types = append(p.types, f.DataTypeOID)
		}
	} else {
		d, err := p.conn.PgConn().Prepare(ctx, rowName(1), stmt.sql, nil)
		if err != nil {
			return p.sink.classed("prepare the insert_query", err)
		}
		p.types = d.ParamOIDs
	}
	if len(p.types) != stmt.width() {
		return connectors.Permanent(fmt.Errorf("route %s: sqlx: %d values for %d columns of table %s", p.sink.spec.Name, stmt.width(), len(p.types), stmt.copyTable),
			"name the columns in insert_query")
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

func (p *prepared) Session() string { return p.session }

func (p *prepared) Close() error { return closeConn(p.conn) }

// Open implements connectors.Prepared. The fence is prepared here, since the
// table of the records is there once the claim is made.
func (p *prepared) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	store, err := p.sink.records(ctx)
	if err != nil {
		return nil, p.sink.classed("open the checkpoint table", err)
	}
	pg := p.conn.PgConn()
	fence, err := pg.Prepare(ctx, fenceName, ckpt.FenceSQL(ckpt.DefaultTable), nil)
	if err != nil {
		return nil, p.sink.classed("prepare the fence", err)
	}
	if p.unsafe != "" {
		claim.Log.Warn("the server does not keep its commits through a crash", "setting", p.unsafe)
	}
	stmt := p.sink.cfg.stmt
	w := &writer{
		sink: p.sink, conn: p.conn, pg: pg, claim: claim, store: store, fence: fence,
		stmt: stmt, copy: p.sink.cfg.useCopy(), types: p.types,
	}
	for _, t := range p.types {
		w.formats = append(w.formats, formatOf(t))
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
	err = fmt.Errorf("route %s: sqlx %s: %w", s.spec.Name, op, described(err))
	switch class {
	case dial.ClassConnection:
		return connectors.Connection(err)
	case dial.ClassPermanent, dial.ClassData:
		return connectors.Permanent(err, hint(err))
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

func hint(err error) string {
	switch dial.Code(err) {
	case dial.CodeUndefinedTable:
		return "create the table, or correct its name"
	case "42703":
		return "the table has no such column"
	case "42501":
		return "the role needs INSERT on the table, and SELECT, INSERT, UPDATE on " + ckpt.DefaultTable
	case "28P01", "28000":
		return "user or password in url"
	case "3D000":
		return "create the database, or correct url"
	}
	return ""
}
