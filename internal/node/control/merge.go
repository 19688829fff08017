package control

import "github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"

// mergeService serves MergeService.
type mergeService struct {
	*Server
	packhorsev1connect.UnimplementedMergeServiceHandler
}
