package control

import "github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"

// historyService serves HistoryService.
type historyService struct {
	*Server
	packhorsev1connect.UnimplementedHistoryServiceHandler
}
