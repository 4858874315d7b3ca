package mongodb_test

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/dial/mongodb"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestURLs(t *testing.T) {
	for url, want := range map[string]string{
		"mongodb://h/db":                                 "mongodb://h/db ",
		"mongodb://h:1/db/coll":                          "mongodb://h:1/db coll",
		"mongodb://u:p%40%2F@h2:2,h1:1/db/a%2Fb?w=1":     "mongodb://h1:1,h2:2/db a/b",
		"mongodb://h/db?directConnection=true":           "mongodb://h/db ",
		"mongodb://u:p@h/db/c?authSource=admin&tls=true": "mongodb://h/db c",
	} {
		c, err := mongodb.Parse(url)
		if err != nil || c.Address()+" "+c.Collection != want {
			t.Errorf("%s: %+v, %v, want %s", url, c, err, want)
		}
	}
}

func TestURLErrorsShowNoPassword(t *testing.T) {
	for _, url := range []string{
		"postgres://u:hunter2@h/db", "mongodb:///db", "mongodb://u:hunter2@h", "mongodb://u:hunter2@h/", "mongodb://u:hunter2@h/db/a/b",
		"mongodb://u:hunter2@h/db%zz", "mongodb://u:hunter2@h:x/db", "mongodb://u:hunter2@h/db?w=many&tls=perhaps",
		"mongodb://u:hunter@2@h/db", "mongodb://h/db?tlsCertificateKeyFilePassword=hunter2&tls=perhaps",
	} {
		_, err := mongodb.Parse(url)
		if err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := mongodb.Parse("mongodb://h/db?tls=perhaps"); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("an option that is wrong is not named: %v", err)
	}
}

func TestServerAloneIsNotReplicated(t *testing.T) {
	server := harness.Mongo(t)
	c, err := mongodb.Parse(server.URL("db"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	if replicated, err := mongodb.Replicated(t.Context(), client); err != nil || replicated {
		t.Fatalf("%v, %v", replicated, err)
	}
}
