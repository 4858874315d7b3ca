package route_test

import (
	"testing"

	"github.com/mqbridge/mqb/route"
)

func TestStoreLocality(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]route.Locality{
		"": route.Shared, "coordinator": route.Shared, "memory": route.Shared,
		"postgres://u:p@h/db/t": route.Shared, "mysql://u:p@h/db": route.Shared, "mariadb://h/db": route.Shared,
		"mongodb://a,b:1/db/c": route.Shared, "mongodb+srv://h/db": route.Shared, "s3://bucket/p": route.Shared,
		"file:///dir": route.NodeLocal, "file:///x.json": route.NodeLocal, "sqlite:///x.db/t": route.NodeLocal,
	} {
		text := "input: {static: x}\n"
		if url != "" {
			text += "checkpoint_store: \"" + url + "\"\n"
		}
		if got := decode(t, text).Routes[0].StoreLocality(); got != want {
			t.Errorf("%s is %s, want %s", url, got, want)
		}
		if got := decode(t, text+"shared_storage: true\n").Routes[0].StoreLocality(); got != route.Shared {
			t.Errorf("%s on shared storage is %s", url, got)
		}
	}
}
