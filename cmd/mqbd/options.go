package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease/etcd"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/spf13/pflag"
)

// options are the settings of a node. Each has one name: --data-dir on the
// command line, MQBD_DATA_DIR in the environment, data-dir in the file of
// --config; the first that is given wins, in this order.
type options struct {
	Name         string
	DataDir      string
	Listen       string
	Advertise    string
	Join         []string
	Voters       int
	Moves        int
	Coordinator  string
	Cluster      string
	Labels       map[string]string
	LeaseTTL     time.Duration
	Memory       byteSize
	Routes       string
	DrainTimeout time.Duration
	LogLevel     string
	LogFormat    string

	// Access is of this node: its certificate is the server's and the client's.
	Access        client.Access
	TLSClientAuth bool

	etcd *etcd.Options // of Coordinator; nil with the embedded raft

	config, host string
}

// Minimum of --lease-ttl: below it a garbage collection or a slow disk costs ownership.
const minLeaseTTL = 2 * time.Second

func (o *options) flags(fs *pflag.FlagSet) {
	o.host, _ = os.Hostname()
	o.Memory = message.DefaultBudget
	fs.StringVar(&o.config, "config", "", "YAML `file` with the same settings by the same names")
	fs.StringVar(&o.Name, "name", cmp.Or(o.host, "mqbd"), "`name` of this node, unique in the cluster")
	fs.StringVar(&o.DataDir, "data-dir", cmp.Or(os.Getenv("STATE_DIRECTORY"), ".mqb"),
		"`directory` of this node's state; the default is systemd's state directory, else .mqb here")
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:7070", "`address` of the API, metrics, health and the cluster's own traffic")
	fs.StringVar(&o.Advertise, "advertise", "", "`address` by which other nodes reach this one (default: that of --listen)")
	fs.StringSliceVar(&o.Join, "join", nil, "`address` of any member to join; repeatable; ignored once the data directory is a member")
	fs.IntVar(&o.Voters, "voters", 3, "how many nodes vote; later ones follow without a vote")
	fs.StringVar(&o.Coordinator, "coordinator", "raft", "raft (embedded), or\netcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/NAMESPACE][?ca=FILE&cert=FILE&key=FILE]")
	fs.StringVar(&o.Cluster, "cluster", "mqb", "`name` of the cluster")
	fs.StringToStringVar(&o.Labels, "label", nil, "`key=value` that placement may ask for; repeatable")
	fs.DurationVar(&o.LeaseTTL, "lease-ttl", 3*time.Second, "how long a node may be silent before others take over")
	fs.IntVar(&o.Moves, "moves", plan.DefaultMoves, "how many partitions may change hands at the same time by the scheduler's choice")
	fs.Var(&o.Memory, "memory", "bound on the bytes of messages in this process")
	fs.StringVar(&o.Routes, "routes", "", "`file` of routes to apply at the start")
	fs.DurationVar(&o.DrainTimeout, "drain-timeout", 30*time.Second, "how long a stop may take to hand over")
	fs.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	fs.StringVar(&o.Access.CertFile, "tls-cert", "", "`file` of this node's certificate; turns TLS on for all that --listen serves")
	fs.StringVar(&o.Access.KeyFile, "tls-key", "", "`file` of its key")
	fs.StringVar(&o.Access.CAFile, "tls-ca", "", "`file` of the authority of the nodes' certificates; members of the embedded raft need one of it")
	fs.StringVar(&o.Access.ServerName, "tls-server-name", "", "`name` in the other nodes' certificates (default: the host of their address)")
	fs.BoolVar(&o.TLSClientAuth, "tls-client-auth", false, "let clients in by certificates of --tls-ca, too (the default without --token-file)")
	fs.StringVar(&o.Access.TokenFile, "token-file", "", "`file` of the token that clients must show; nobody but owner and group may have access to it")
}

// load fills what the command line left open from the environment, then from the
// file.
func (o *options) load(fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	var problems []string
	set := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { set[f.Name] = true })
	fs.VisitAll(func(f *pflag.Flag) {
		key := "MQBD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		v, ok := lookupEnv(key)
		if !ok || set[f.Name] || f.Name == "help" {
			return
		}
		set[f.Name] = true
		if err := fs.Set(f.Name, v); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", key, err))
		}
	})
	if o.config != "" {
		text, err := os.ReadFile(o.config)
		if err != nil {
			return err
		}
		var file map[string]any
		if err := yaml.Unmarshal(text, &file); err != nil {
			return fmt.Errorf("%s: %w", o.config, err)
		}
		for name, v := range file {
			f := fs.Lookup(name)
			switch {
			case f == nil || name == "config" || name == "help":
				problems = append(problems, fmt.Sprintf("%s: unknown key %q", o.config, name))
			case !set[name]:
				for _, s := range settings(v) {
					if err := fs.Set(name, s); err != nil {
						problems = append(problems, fmt.Sprintf("%s: %s: %v", o.config, name, err))
					}
				}
			}
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return fmt.Errorf("%s", strings.Join(problems, "\n"))
	}
	return nil
}

// settings are the values of a key as a flag takes them: one after the other.
func settings(v any) []string {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		var out []string
		for _, x := range v {
			out = append(out, settings(x)...)
		}
		return out
	case map[string]any:
		var out []string
		for k, x := range v {
			out = append(out, fmt.Sprintf("%s=%v", k, x))
		}
		return out
	}
	return []string{fmt.Sprint(v)}
}

// check refuses what cannot work, all at once.
func (o *options) check() error {
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	o.checkAccess(bad)
	switch {
	case o.Coordinator == "raft":
	case strings.HasPrefix(o.Coordinator, "etcd://"):
		e, err := etcd.ParseURL(o.Coordinator)
		if err != nil {
			bad("--coordinator: %v", err)
		}
		o.etcd = &e
		if len(o.Join) > 0 {
			bad("--join is for the embedded raft; nodes with the same --coordinator and --cluster are one cluster")
		}
	default:
		// The value may hold a password that a mistyped scheme made unreadable to us.
		bad("--coordinator: use raft or etcd://host:port,…")
	}
	if o.Advertise != "" {
		if _, _, err := net.SplitHostPort(o.Advertise); err != nil {
			bad("--advertise %s: must be host:port", o.Advertise)
		}
	}
	for _, j := range o.Join {
		if _, _, err := net.SplitHostPort(j); err != nil {
			bad("--join %s: must be host:port", j)
		}
	}
	if o.Name == "" || o.Cluster == "" || o.DataDir == "" {
		bad("--name, --cluster and --data-dir must not be empty")
	}
	if o.Voters < 1 || o.Voters%2 == 0 {
		bad("--voters %d: must be odd, since an even number survives no more failures than the odd one below", o.Voters)
	}
	if o.Moves < 1 {
		bad("--moves %d: at least 1", o.Moves)
	}
	if o.LeaseTTL < minLeaseTTL {
		bad("--lease-ttl %s: at least %s", o.LeaseTTL, minLeaseTTL)
	}
	if o.Memory < 1<<20 {
		bad("--memory %s: at least 1MiB", o.Memory.String())
	}
	if o.DrainTimeout < 0 {
		bad("--drain-timeout must not be negative")
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, o.LogLevel) {
		bad("--log-level %q: use debug, info, warn or error", o.LogLevel)
	}
	if o.LogFormat != "text" && o.LogFormat != "json" {
		bad("--log-format %q: use text or json", o.LogFormat)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s", strings.Join(problems, "\n"))
	}
	return nil
}

// byteSize is a size in bytes as a flag: 128MiB.
type byteSize int64

func (b *byteSize) String() string { return route.Bytes(*b).String() }
func (b *byteSize) Type() string   { return "bytes" }
func (b *byteSize) Set(s string) error {
	v, err := route.ParseBytes(s)
	*b = byteSize(v)
	return err
}
