package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
	"github.com/mqbridge/mqb/test/harness"
)

func TestURL(t *testing.T) {
	o, err := ParseURL("etcd://u%40x:p%2Fw@h1:2379,[::1]:2380,h3:2379/prod/mqb/?tls=true")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(o.Endpoints, " "); got != "h1:2379 [::1]:2380 h3:2379" {
		t.Errorf("endpoints %s", got)
	}
	if o.Username != "u@x" || o.Password != "p/w" || o.Namespace != "/prod/mqb" || o.TLS == nil {
		t.Errorf("user %q, namespace %q, TLS %v", o.Username, o.Namespace, o.TLS != nil)
	}
	if o, err = ParseURL("etcd://h:1"); err != nil || o.TLS != nil || o.Namespace != "" || o.Username != "" {
		t.Errorf("%v, %v", o, err)
	}
}

func TestURLsThatCannotWork(t *testing.T) {
	for in, want := range map[string]string{
		"http://h:2379":                            "must begin with etcd://",
		"etcd://":                                  "not host:port",
		"etcd://h":                                 "not host:port",
		"etcd://h:2379,":                           "not host:port",
		"etcd://:2379":                             "not host:port",
		"etcd://h:0":                               "not host:port",
		"etcd://h:99999":                           "not host:port",
		"etcd://u@h:2379":                          "a user needs a password",
		"etcd://:secret@h:2379":                    "a user needs a password",
		"etcd://u:secret%zz@h:2379":                "escap",
		"etcd://u:secret@h:2379/%zz":               "escap",
		"etcd://u:sec ret@h:2379":                  "userinfo",
		"etcd://u:secret@h:2379#x":                 "fragment",
		"etcd://u:secret@h:2379?caa=x":             `unknown parameter "caa"`,
		"etcd://u:secret@h:2379?ca=":               "exactly one value",
		"etcd://u:secret@h:2379?ca=a&ca=b":         "exactly one value",
		"etcd://u:secret@h:2379?tls=maybe":         "neither true nor false",
		"etcd://u:secret@h:2379?tls=false&ca=x":    "contradicts",
		"etcd://u:secret@h:2379?cert=c.pem":        "go together",
		"etcd://u:secret@h:2379?ca=/does/not/live": "no such file",
	} {
		_, err := ParseURL(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", in, err, want)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: the error shows the password: %v", in, err)
		}
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	o, err := ParseURL("etcd://user:secret@h:2379/ns")
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "etcd", o)
	for _, s := range []string{fmt.Sprint(o), fmt.Sprintf("%+v %#v %v", o, o, &o), log.String()} {
		if strings.Contains(s, "secret") || !strings.Contains(s, "etcd://user:***@h:2379/ns") {
			t.Error(s)
		}
	}
}

// certificates makes an authority with a server's and a client's certificate.
func certificates(t *testing.T) (dir string) {
	t.Helper()
	harness.Install(t, "openssl")
	dir = t.TempDir()
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command("openssl", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("openssl %s: %v\n%s", args[0], err, out)
		}
	}
	newKey := []string{"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"}
	run(append([]string{"req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test"}, newKey...)...)
	for _, name := range []string{"server", "client"} {
		run(append([]string{"req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", name + ".key", "-out", name + ".pem",
			"-subj", "/CN=" + name, "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
			"-addext", "extendedKeyUsage=serverAuth,clientAuth"}, newKey...)...)
	}
	return dir
}

func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	pem := func(name string) string { return filepath.Join(dir, name) }
	cluster := harness.Etcd(t, 1, "--cert-file="+pem("server.pem"), "--key-file="+pem("server.key"),
		"--trusted-ca-file="+pem("ca.pem"), "--client-cert-auth=true")
	for query, works := range map[string]bool{
		"?ca=" + pem("ca.pem") + "&cert=" + pem("client.pem") + "&key=" + pem("client.key"): true,
		"?ca=" + pem("ca.pem"): false, // no certificate
		"?cert=" + pem("client.pem") + "&key=" + pem("client.key"): false, // an unknown authority
		"": false, // plain text
	} {
		o, err := ParseURL(cluster.URL() + query)
		if err != nil {
			t.Fatal(err)
		}
		c := open(t, o)
		ctx := within(t)
		if !works {
			ctx = shortly(t)
		}
		_, err = c.Txn(ctx, nil, []lease.Op{lease.Put("/x", nil)})
		if works && err != nil || !works && !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%q: %v", query, err)
		}
	}
}

func TestUserAndPassword(t *testing.T) {
	t.Parallel()
	cluster := harness.Etcd(t, 3)
	root, err := clientv3.New(clientv3.Config{Endpoints: cluster.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	ctx := within(t)
	for _, step := range []func() error{
		func() error { _, err := root.UserAdd(ctx, "root", "rootsecret"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := root.UserAdd(ctx, "mqb", "mqbsecret"); return err },
		func() error { _, err := root.RoleAdd(ctx, "mqb"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "mqb", "/ours/", "/ours0", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserGrantRole(ctx, "mqb", "mqb"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	hosts := strings.Join(cluster.Endpoints(), ",")
	ours := func(url string) Options {
		t.Helper()
		o, err := ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	c := open(t, ours("etcd://mqb:mqbsecret@"+hosts+"/ours"))
	s := session(t, c, "/node")
	m := mirror(t, c, "/")
	put(t, c, "/x", "1")
	awaitMirror(t, m, shows("/x", "1"))

	// Members forget their logins when they restart; the client logs in again.
	cluster.Kill()
	cluster.Start(t)
	put(t, c, "/x", "2")
	awaitMirror(t, m, shows("/x", "2"))
	awaitGate(t, s, true)

	refused := func(what string, err error) {
		t.Helper()
		if err == nil || errors.Is(err, lease.ErrUnavailable) || strings.Contains(err.Error(), "mqbsecret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = Open(t.Context(), ours("etcd://mqb:wrong@"+hosts))
	refused("wrong password", err)
	_, err = open(t, ours("etcd://mqb:mqbsecret@"+hosts+"/theirs")).Txn(ctx, nil, []lease.Op{lease.Put("/x", nil)})
	refused("another's namespace", err)
	_, _, err = open(t, ours("etcd://"+hosts+"/ours")).Get(ctx, "/x")
	refused("no login", err)

	cluster.Kill()
	_, err = Open(shortly(t), ours("etcd://mqb:mqbsecret@"+hosts+"/ours"))
	if !errors.Is(err, lease.ErrUnavailable) {
		t.Errorf("login without a server: %v", err)
	}
}

func TestNamespacesDoNotMeet(t *testing.T) {
	t.Parallel()
	cluster := harness.Etcd(t, 1)
	one := open(t, Options{Endpoints: cluster.Endpoints(), Namespace: "/one"})
	two := open(t, Options{Endpoints: cluster.Endpoints(), Namespace: "/two"})
	m := mirror(t, two, "/")
	put(t, one, "/x", "1")
	put(t, two, "/y", "2")
	awaitMirror(t, m, shows("/y", "2"))
	if get(t, two, "/x") != "" || m.Snapshot().Len() != 1 {
		t.Error("one sees the other's keys")
	}
	if _, err := two.Txn(within(t), nil, []lease.Op{lease.DeletePrefix("/")}); err != nil {
		t.Fatal(err)
	}
	if get(t, one, "/x") != "1" {
		t.Error("one deleted the other's keys")
	}
}

func TestLimitsOfTheServersAreNamed(t *testing.T) {
	t.Parallel()
	cluster := harness.Etcd(t, 1, "--max-request-bytes=65536", "--max-txn-ops=130")
	c := open(t, Options{Endpoints: cluster.Endpoints()})
	puts := func(n int) (ops []lease.Op) {
		for i := range n {
			ops = append(ops, lease.Put(fmt.Sprintf("/%d", i), nil))
		}
		return ops
	}
	if _, err := c.Txn(within(t), nil, puts(130)); err != nil {
		t.Errorf("a limit that was raised: %v", err)
	}
	_, err := c.Txn(within(t), nil, puts(131))
	if err == nil || errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), "--max-txn-ops") {
		t.Errorf("too many operations: %v", err)
	}
	_, err = c.Txn(within(t), nil, []lease.Op{lease.Put("/x", make([]byte, 100_000))})
	if !errors.Is(err, kv.ErrTooLarge) || errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), "--max-request-bytes") {
		t.Errorf("too many bytes: %v", err)
	}
}

func TestLeasesLiveWholeSeconds(t *testing.T) {
	t.Parallel()
	cluster := harness.Etcd(t, 1)
	c := open(t, Options{Endpoints: cluster.Endpoints()})
	id, err := c.Grant(within(t), 2100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if ttl, err := c.KeepAlive(within(t), id); err != nil || ttl != 3*time.Second {
		t.Errorf("%v, %v", ttl, err)
	}
}

// TestAFrozenMemberIsLeftBehind: its connections stay open and nothing answers.
func TestAFrozenMemberIsLeftBehind(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as gRPC's pings")
	}
	cluster := harness.Etcd(t, 3)
	c := open(t, Options{Endpoints: cluster.Endpoints()})
	leader := cluster.Leader(t)
	s := session(t, c, "/node")
	m := mirror(t, c, "/")
	for _, member := range cluster.Members {
		if member != leader {
			member.Process().Freeze()
			defer member.Process().Thaw()
			break
		}
	}
	begin := time.Now()
	put(t, open(t, Options{Endpoints: []string{leader.Addr}}), "/n", "1")
	awaitMirror(t, m, shows("/n", "1"))
	took := time.Since(begin)
	t.Logf("the mirror was behind for %v", took.Round(time.Millisecond))
	if took > pingEvery+pingTimeout+30*time.Second {
		t.Errorf("the mirror was behind for %v", took)
	}
	awaitGate(t, s, true)
}
