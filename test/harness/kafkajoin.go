package harness

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// Join starts a second broker in the cluster of b, for one test, which may kill it:
// its topics' leaders then move. The controller stays with b.
func (b *KafkaBroker) Join(t testing.TB, node int, properties map[string]string) *KafkaBroker {
	t.Helper()
	meta, err := os.ReadFile(filepath.Join(b.DataDir, "meta.properties"))
	if err != nil {
		t.Fatalf("harness: kafka: %v", err)
	}
	cluster := ""
	for _, line := range idLine.FindAllString(string(meta), -1) {
		_, _ = fmt.Sscanf(line, "cluster.id=%s", &cluster)
	}
	port, err := freePort()
	if err != nil {
		t.Fatalf("harness: kafka: %v", err)
	}
	dir := t.TempDir()
	data, config := filepath.Join(dir, "data"), filepath.Join(dir, "server.properties")
	listener := fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", port)
	own := map[string]string{"node.id": fmt.Sprint(node), "process.roles": "broker", "listeners": listener, "advertised.listeners": listener}
	maps.Copy(own, properties)
	joined := &KafkaBroker{Addr: fmt.Sprintf("127.0.0.1:%d", port), DataDir: data, controller: b.controller}
	for path, text := range map[string][]byte{
		config:                                 kafkaProperties(data, port, b.controller, own),
		filepath.Join(data, "meta.properties"): fmt.Appendf(nil, "version=1\nnode.id=%d\ncluster.id=%s\ndirectory.id=%s\n", node, cluster, clusterID()),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatalf("harness: kafka: %v", err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatalf("harness: kafka: %v", err)
		}
	}
	joined.spec = b.spec
	joined.spec.Name, joined.spec.Dir = "kafka of node "+fmt.Sprint(node), dir
	joined.spec.Args = append(b.spec.Args[:len(b.spec.Args)-1:len(b.spec.Args)-1], config)
	joined.spec.Ready = joined.ready
	if joined.proc, err = start(t.Context(), joined.spec); err != nil {
		t.Fatalf("harness: kafka: %v", err)
	}
	t.Cleanup(func() {
		joined.Process().Kill()
		if t.Failed() {
			t.Logf("last output of node %d of kafka:\n%s", node, joined.Process().Log())
		}
	})
	return joined
}
