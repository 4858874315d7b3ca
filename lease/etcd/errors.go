package etcd

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// failure sorts an error of the client. What etcd surely did not do, and would not
// do if asked again, keeps its own error; a lease that is gone is
// ErrLeaseNotFound; everything else, known or not, is ErrUnavailable, which says
// that the outcome is unknown.
func failure(call string, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("etcd: %s: %w", call, lease.ErrLeaseNotFound)
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("etcd: %s: more operations or compares than the servers' --max-txn-ops allows: %w", call, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("etcd: %s: beyond the servers' --max-request-bytes: %w", call, kv.ErrTooLarge)
	}
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("etcd: %s: refused: %w", call, err)
	}
	return fmt.Errorf("etcd: %s: %w: %w", call, lease.ErrUnavailable, err)
}

// code is the gRPC code of an error; Unknown for those that have none, like a
// context's.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}
