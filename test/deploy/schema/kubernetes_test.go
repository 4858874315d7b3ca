package schema

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// manifests are what kubectl apply would send.
type manifests struct {
	service core.Service
	budget  policy.PodDisruptionBudget
	set     apps.StatefulSet
}

// decode fills m from YAML. A key that Kubernetes' types do not have is an error,
// as is a kind that nothing here knows.
func decode(text []byte) (m manifests, err error) {
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return m, err
		}
		var into any
		switch kind.GroupVersionKind() {
		case core.SchemeGroupVersion.WithKind("Service"):
			into = &m.service
		case policy.SchemeGroupVersion.WithKind("PodDisruptionBudget"):
			into = &m.budget
		case apps.SchemeGroupVersion.WithKind("StatefulSet"):
			into = &m.set
		default:
			return m, &unknownKind{kind}
		}
		if err := yaml.UnmarshalStrict(doc, into); err != nil {
			return m, err
		}
	}
	return m, nil
}

type unknownKind struct{ meta.TypeMeta }

func (u *unknownKind) Error() string { return "unknown kind " + u.GroupVersionKind().String() }

func read(t *testing.T) []byte {
	t.Helper()
	files, err := filepath.Glob(deploy + "/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	var all [][]byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	return bytes.Join(all, []byte("\n---\n"))
}

func TestManifestsFollowTheTypesOfKubernetes(t *testing.T) {
	t.Parallel()
	m, err := decode(read(t))
	if err != nil {
		t.Fatal(err)
	}
	pod := m.set.Spec.Template
	if m.service.Name != m.set.Spec.ServiceName || m.service.Spec.ClusterIP != core.ClusterIPNone {
		t.Errorf("the set's service is %q, ours %q at %q", m.set.Spec.ServiceName, m.service.Name, m.service.Spec.ClusterIP)
	}
	for name, s := range map[string]*meta.LabelSelector{
		"service": {MatchLabels: m.service.Spec.Selector}, "budget": m.budget.Spec.Selector, "set": m.set.Spec.Selector,
		"spread": pod.Spec.TopologySpreadConstraints[0].LabelSelector,
	} {
		sel, err := meta.LabelSelectorAsSelector(s)
		if err != nil || sel.Empty() || !sel.Matches(labels.Set(pod.Labels)) {
			t.Errorf("the selector of the %s does not select the pods: %v %v", name, sel, err)
		}
	}
	if n := m.budget.Spec.MaxUnavailable; n == nil || n.IntValue() != 1 {
		t.Errorf("%v pods may be away", n)
	}
	c := pod.Spec.Containers[0]
	if p := c.ReadinessProbe; p == nil || p.Exec == nil || c.LivenessProbe != nil {
		t.Errorf("probes: %+v %+v", c.ReadinessProbe, c.LivenessProbe)
	}
	if l := c.Lifecycle; l == nil || l.PreStop == nil || l.PreStop.Exec == nil || l.PreStop.Exec.Command[1] != "drain" {
		t.Errorf("nothing drains before a stop: %+v", l)
	}
	mounted := map[string]bool{}
	for _, v := range c.VolumeMounts {
		mounted[v.Name] = true
	}
	for _, v := range pod.Spec.Volumes {
		if !mounted[v.Name] {
			t.Errorf("volume %s is not mounted", v.Name)
		}
		delete(mounted, v.Name)
	}
	for _, v := range m.set.Spec.VolumeClaimTemplates {
		delete(mounted, v.Name)
	}
	if len(mounted) > 0 {
		t.Errorf("mounted without a volume: %v", mounted)
	}
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !*pod.Spec.SecurityContext.RunAsNonRoot {
		t.Error("the pod may do more than it needs to")
	}
}

func TestKubernetesTypesRefuseAnUnknownKey(t *testing.T) {
	t.Parallel()
	text := bytes.Replace(read(t), []byte("readinessProbe:"), []byte("readynessProbe:"), 1)
	if _, err := decode(text); err == nil {
		t.Error("not refused")
	}
}
