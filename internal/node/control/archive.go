package control

import "github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"

// archiveService serves ArchiveService.
type archiveService struct {
	*Server
	packhorsev1connect.UnimplementedArchiveServiceHandler
}
