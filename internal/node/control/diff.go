package control

import "github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"

// diffService serves DiffService.
type diffService struct {
	*Server
	packhorsev1connect.UnimplementedDiffServiceHandler
}
