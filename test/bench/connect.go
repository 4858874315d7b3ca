package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mqbridge/mqb/test/harness"
)

// connect is a standalone worker of Kafka Connect with the file connectors that
// come with it. It never ends by itself.
type connect struct{ lib string }

const (
	connectVersion = "4.3.1"
	connectName    = "orders"
)

func (*connect) name() string { return "Kafka Connect " + connectVersion }

func (c *connect) install(ctx context.Context, p *program) error {
	dir := harness.Cached(p, "peer-connect-"+connectVersion, func(dir string) error {
		pom := `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqb.bench</groupId><artifactId>connect</artifactId><version>1</version>
  <dependencies>`
		for _, a := range []string{"connect-runtime", "connect-file", "connect-json"} {
			pom += fmt.Sprintf("\n    <dependency><groupId>org.apache.kafka</groupId><artifactId>%s</artifactId><version>%s</version></dependency>", a, connectVersion)
		}
		pom += "\n  </dependencies>\n</project>\n"
		file := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(file, []byte(pom), 0o644); err != nil {
			return err
		}
		return command(ctx, "mvn", "-B", "-q", "-f", file, "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "lib"))
	})
	c.lib = filepath.Join(dir, "lib")
	return nil
}

func (c *connect) variant(w *work, t task) (v variant, why string, err error) {
	var properties string
	switch t.kind {
	case kafkaToJSONL:
		properties = fmt.Sprintf("connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector\ntopics=%s\nfile=%s\n", t.topic, t.out)
		v.until = landed(t)
	case jsonlToKafka:
		properties = fmt.Sprintf("connector.class=org.apache.kafka.connect.file.FileStreamSourceConnector\ntopic=%s\nfile=%s\n", t.topic, t.in)
		v.until = func(ctx context.Context) (bool, error) {
			n, err := w.countSink(ctx)
			return n >= t.rows, err
		}
	case kafkaProjected:
		return variant{}, "its lines are text to it; a projection needs a converter and a writer of JSON, which its file connector is not", nil
	default:
		return variant{}, "its file connectors copy lines to and from Kafka only", nil
	}
	connector, err := w.spec("connect-"+t.kind.String(), "name="+connectName+"\ntasks.max=1\n"+properties)
	if err != nil {
		return v, "", err
	}
	// Below the state directory, so that it goes with what a run leaves behind.
	worker, err := w.spec("connect-worker", fmt.Sprintf(`bootstrap.servers=%s
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename=%s
listeners=http://127.0.0.1:0
plugin.discovery=service_load
`, t.kafka, filepath.Join(w.path("out"), "connect.offsets")))
	v.bin = "java"
	v.args = func() []string {
		return []string{"-Xmx1g", "-cp", filepath.Join(c.lib, "*"), "org.apache.kafka.connect.cli.ConnectStandalone", worker, connector}
	}
	return v, "", err
}
