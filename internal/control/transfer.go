package control

import "github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"

// transfers serves Git's own sessions.
type transfers struct {
	*Server
	packhorsev1connect.UnimplementedTransferServiceHandler
}

var _ packhorsev1connect.TransferServiceHandler = (*transfers)(nil)
