package schema

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const deploy = "../../../deploy"

// load reads files as `docker compose` does: against the schema, merged,
// interpolated and checked for references.
func load(t *testing.T, files ...string) (*types.Project, error) {
	t.Helper()
	o, err := cli.NewProjectOptions(files, cli.WithName("test"), cli.WithEnv([]string{"MQB_TEST_ROUTES=/routes.yaml"}))
	if err != nil {
		t.Fatal(err)
	}
	return o.LoadProject(t.Context())
}

func TestComposeFilesFollowTheSchema(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{
		{deploy + "/compose.yml"},
		{deploy + "/compose.dev.yml"},
		{deploy + "/compose.yml", "../testdata/override.yml"},
		{deploy + "/compose.yml", deploy + "/compose.tls.yml"},
	} {
		p, err := load(t, files...)
		if err != nil {
			t.Errorf("%s: %v", files, err)
			continue
		}
		mqbd := p.Services["mqbd"]
		if !mqbd.ReadOnly {
			t.Errorf("%s: the root of mqbd is writable", files)
		}
		if mqbd.Environment["MQBD_TLS_CERT"] == nil && len(mqbd.Ports) > 0 {
			t.Errorf("%s: mqbd is published without TLS: %v", files, mqbd.Ports)
		}
		if mqbd.ContainerName != "" {
			t.Errorf("%s: a fixed name cannot be scaled", files)
		}
		for name, s := range p.Services {
			// The image of mqbd brings its own.
			if name != "mqbd" && s.HealthCheck == nil {
				t.Errorf("%s: %s has no health check", files, name)
			}
			if s.Restart == "" {
				t.Errorf("%s: %s is not restarted", files, name)
			}
		}
	}
}

func TestComposeClusterIsWhole(t *testing.T) {
	t.Parallel()
	p, err := load(t, deploy+"/compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	if s := p.Services["mqbd"].Scale; s == nil || *s != 3 {
		t.Errorf("mqbd starts %v times", s)
	}
	for _, name := range []string{"etcd1", "etcd2", "etcd3", "kafka", "postgres", "s3"} {
		s, ok := p.Services[name]
		if !ok || len(s.Volumes) == 0 {
			t.Errorf("%s is not there or keeps nothing", name)
		}
	}
	over, err := load(t, deploy+"/compose.yml", "../testdata/override.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kafka", "postgres"} {
		if _, ok := over.Services[name]; ok {
			t.Errorf("the override leaves %s in", name)
		}
	}
	if !over.Networks["default"].Internal {
		t.Error("the test's network reaches out")
	}
}

// Hazard: a port that is published beyond the host, or without what guards it.
func TestPublishedPortsAreGuarded(t *testing.T) {
	t.Parallel()
	p, err := load(t, deploy+"/compose.yml", deploy+"/compose.tls.yml")
	if err != nil {
		t.Fatal(err)
	}
	mqbd := p.Services["mqbd"]
	if len(mqbd.Ports) != 1 || mqbd.Ports[0].HostIP != "127.0.0.1" || mqbd.Ports[0].Target != 7070 {
		t.Errorf("published as %+v", mqbd.Ports)
	}
	mounted := map[string]bool{}
	for _, v := range mqbd.Volumes {
		if v.ReadOnly {
			mounted[v.Target] = true
		}
	}
	for _, name := range []string{"MQBD_TLS_CERT", "MQBD_TLS_KEY", "MQBD_TLS_CA", "MQBD_TOKEN_FILE", "MQBCTL_CA", "MQBCTL_TOKEN_FILE"} {
		if v := mqbd.Environment[name]; v == nil || !mounted[*v] {
			t.Errorf("%s is no file that is mounted", name)
		}
	}
	if v := mqbd.Environment["MQBD_COORDINATOR"]; v == nil {
		t.Error("the settings of compose.yml are gone")
	}
	for name, s := range p.Services {
		if name != "mqbd" && len(s.Ports) > 0 {
			t.Errorf("%s is published", name)
		}
	}
}

// Were the schema not asked, the tests above would pass for anything.
func TestSchemaRefusesAnUnknownKey(t *testing.T) {
	t.Parallel()
	if _, err := load(t, deploy+"/compose.yml", filepath.Join("testdata", "unknown.yml")); err == nil || !strings.Contains(err.Error(), "helthcheck") {
		t.Errorf("not refused: %v", err)
	}
}
