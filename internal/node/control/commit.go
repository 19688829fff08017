package control

import "github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"

// commitService serves CommitService.
type commitService struct {
	*Server
	packhorsev1connect.UnimplementedCommitServiceHandler
}
