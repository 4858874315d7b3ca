package harness

import (
	"path/filepath"
	"testing"
)

// EtcdBinary is the server that Etcd starts, static, for those who start it in
// another way.
func EtcdBinary(t testing.TB) string {
	t.Helper()
	return filepath.Join(Cached(t, "etcd-"+etcdModule(t), buildEtcd), "etcd")
}

// S3Binary is the server that S3 starts, static.
func S3Binary(t testing.TB) string {
	t.Helper()
	dir := Cached(t, "versitygw-"+S3Version, func(dir string) error { return buildVersitygw(dir, S3Version) })
	return filepath.Join(dir, "versitygw")
}
