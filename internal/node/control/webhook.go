package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// webhookService serves WebhookService.
type webhookService struct {
	*Server
}

var _ packhorsev1connect.WebhookServiceHandler = webhookService{}

func (s webhookService) List(ctx context.Context, _ *connect.Request[packhorsev1.WebhookServiceListRequest]) (
	*connect.Response[packhorsev1.WebhookServiceListResponse], error) {
	all, err := s.Webhooks.List(ctx)
	return responseOf(&packhorsev1.WebhookServiceListResponse{Webhooks: all}, err)
}

func (s webhookService) Add(ctx context.Context, r *connect.Request[packhorsev1.WebhookServiceAddRequest]) (
	*connect.Response[packhorsev1.WebhookServiceAddResponse], error) {
	if w := r.Msg.GetWebhook(); w.GetHasSecret() || w.GetConfigured() || w.GetPosition() != "" {
		return nil, fault.InvalidField("webhook", "has_secret, configured and position are not set in requests")
	}
	return responseOf(&packhorsev1.WebhookServiceAddResponse{}, s.Webhooks.Add(ctx, r.Msg))
}

func (s webhookService) Remove(ctx context.Context, r *connect.Request[packhorsev1.WebhookServiceRemoveRequest]) (
	*connect.Response[packhorsev1.WebhookServiceRemoveResponse], error) {
	return responseOf(&packhorsev1.WebhookServiceRemoveResponse{}, s.Webhooks.Remove(ctx, r.Msg.GetName()))
}

func (s webhookService) Deliveries(ctx context.Context,
	r *connect.Request[packhorsev1.WebhookServiceDeliveriesRequest]) (
	*connect.Response[packhorsev1.WebhookServiceDeliveriesResponse], error) {
	list, err := s.Webhooks.Deliveries(ctx, r.Msg.GetName())
	return responseOf(&packhorsev1.WebhookServiceDeliveriesResponse{Deliveries: list}, err)
}

func (s webhookService) Redeliver(ctx context.Context,
	r *connect.Request[packhorsev1.WebhookServiceRedeliverRequest]) (
	*connect.Response[packhorsev1.WebhookServiceRedeliverResponse], error) {
	d, err := s.Webhooks.Redeliver(ctx, r.Msg.GetName(), r.Msg.GetId())
	return responseOf(&packhorsev1.WebhookServiceRedeliverResponse{Delivery: d}, err)
}
