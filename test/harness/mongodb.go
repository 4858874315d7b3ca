package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// mongoVersion is the version of mongo-java-server that test/servers/mongodb pins.
const mongoVersion = "1.47.0"

// MongoServer speaks MongoDB's protocol over a memory of its own (see
// test/servers/mongodb): what it holds ends with its process.
type MongoServer struct {
	// Addr is host:port.
	Addr string

	databases atomic.Int64
	proc      *Process
}

var sharedMongo struct {
	once   sync.Once
	server *MongoServer
	err    error
}

// Mongo returns the server that the tests of this binary share; use NewDatabase
// for a place of one's own, and StartMongo to harm a server. Main ends the shared one.
func Mongo(t testing.TB) *MongoServer {
	t.Helper()
	s := &sharedMongo
	s.once.Do(func() {
		s.server, s.err = newMongo()
		atEnd(func() {
			if s.err == nil {
				s.server.Process().Kill()
			}
		})
	})
	if s.err != nil {
		t.Fatalf("harness: mongodb: %v", s.err)
	}
	return s.server
}

// StartMongo starts a server that ends with the test.
func StartMongo(t testing.TB) *MongoServer {
	t.Helper()
	s, err := newMongo()
	if err != nil {
		t.Fatalf("harness: mongodb: %v", err)
	}
	t.Cleanup(func() {
		s.Process().Kill()
		if t.Failed() {
			t.Logf("last output of mongodb:\n%s", s.Process().Log())
		}
	})
	return s
}

func newMongo() (*MongoServer, error) {
	dir, err := cached("mongodb-"+mongoVersion, buildMongo)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &MongoServer{Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	s.proc, err = start(context.Background(), Spec{
		Name: "mongodb",
		Path: "java",
		Args: []string{
			"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
			"-cp", filepath.Join(dir, "classes") + ":" + filepath.Join(dir, "lib", "*"), "Server", fmt.Sprint(port),
		},
		Ready: func(ctx context.Context) error {
			c, err := mongo.Connect(options.Client().ApplyURI(s.URL("admin")))
			if err != nil {
				return err
			}
			defer func() { _ = c.Disconnect(context.Background()) }()
			return c.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
		},
	})
	return s, err
}

// buildMongo lets Maven fetch the server and a compiler, and compiles its main.
func buildMongo(dir string) error {
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("it needs java 17 and mvn (Debian: default-jre-headless, maven): %w", err)
		}
	}
	module, err := serverModule("mongodb")
	if err != nil {
		return err
	}
	lib := filepath.Join(dir, "lib")
	for _, cmd := range []*exec.Cmd{
		exec.Command("mvn", "-B", "-q", "-f", filepath.Join(module, "pom.xml"), "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory="+lib),
		exec.Command("java", "-cp", filepath.Join(lib, "*"), "org.eclipse.jdt.internal.compiler.batch.Main",
			"-17", "-cp", jars(lib), "-d", filepath.Join(dir, "classes"), filepath.Join(module, "Server.java")),
	} {
		cmd.Dir = dir
		cmd.Env = os.Environ()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, out)
		}
	}
	return nil
}

// jars is the class path of a directory for the compiler, which expands no stars.
func jars(lib string) string {
	return filepath.Join(lib, "mongo-java-server-core-"+mongoVersion+".jar") + ":" +
		filepath.Join(lib, "mongo-java-server-memory-backend-"+mongoVersion+".jar") + ":" +
		filepath.Join(lib, "mongo-java-server-"+mongoVersion+".jar")
}

// Process is the server: freeze, thaw or kill it there.
func (s *MongoServer) Process() *Process { return s.proc }

// URL is the mongodb:// URL of a database, or of database/collection.
func (s *MongoServer) URL(path string) string { return MongoURL(s.Addr, path) }

// MongoURL is URL for another address of the same server, a proxy.
func MongoURL(addr, path string) string {
	return "mongodb://" + addr + "/" + path + "?directConnection=true&retryWrites=false"
}

// NewDatabase returns the name of a database that no other test uses.
func (s *MongoServer) NewDatabase(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("t%d", s.databases.Add(1))
}

// Database returns a database behind a client that ends with the test.
func (s *MongoServer) Database(t testing.TB, name string) *mongo.Database {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(s.URL(name)))
	if err != nil {
		t.Fatalf("harness: mongodb client: %v", err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c.Database(name)
}
