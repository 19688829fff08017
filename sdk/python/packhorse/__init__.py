"""Client of a Packhorse storage node.

Node has a gRPC stub for each service of proto/packhorse/v1, and v1 the messages. The calls and messages are documented
there. Set a timeout for each call: node.refs.Resolve(request, timeout=10).
"""

import grpc
from google.rpc import status_pb2

from packhorse import v1
from packhorse.v1 import (archive_pb2_grpc, commit_pb2_grpc, diff_pb2_grpc, event_pb2_grpc, history_pb2_grpc,
                          merge_pb2_grpc, object_pb2_grpc, ref_pb2_grpc, repository_pb2_grpc,
                          webhook_pb2_grpc)

_OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


class _Secret(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor,
              grpc.StreamStreamClientInterceptor):
    """Adds the secret of the node to each call."""

    def __init__(self, secret):
        self._header = ("authorization", "Bearer " + secret)

    def _call(self, continuation, details, request):
        metadata = list(details.metadata or []) + [self._header]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _call


class Node:
    """The services of a storage node. Safe for concurrent use."""

    def __init__(self, address, secret="", credentials=None):
        """Makes a client of the node at HOST:PORT or unix:PATH. It does not connect before the first call.

        secret is the content of the node's secret_file. credentials are for TLS (grpc.ssl_channel_credentials); without
        them the secret is readable on the network.
        """
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)
        channel = self._channel if not secret else grpc.intercept_channel(self._channel, _Secret(secret))
        self.repositories = repository_pb2_grpc.RepositoryServiceStub(channel)
        self.refs = ref_pb2_grpc.RefServiceStub(channel)
        self.objects = object_pb2_grpc.ObjectServiceStub(channel)
        self.commits = commit_pb2_grpc.CommitServiceStub(channel)
        self.merges = merge_pb2_grpc.MergeServiceStub(channel)
        self.diffs = diff_pb2_grpc.DiffServiceStub(channel)
        self.events = event_pb2_grpc.EventServiceStub(channel)
        self.history = history_pb2_grpc.HistoryServiceStub(channel)
        self.webhooks = webhook_pb2_grpc.WebhookServiceStub(channel)
        self.archives = archive_pb2_grpc.ArchiveServiceStub(channel)

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def fault_of(error):
    """Returns the v1.Fault of a grpc.RpcError: kind, field and mismatches. None if it has no Fault."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                fault = v1.Fault()
                if detail.Unpack(fault):
                    return fault
    return None
