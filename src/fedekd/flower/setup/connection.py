"""What a site can see of its server before it joins: whether it answers, its clock, whether it knows the key."""

from __future__ import annotations

import http.client
import socket
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fedekd.errors import FedekdError
from fedekd.flower.settings import SiteSettings, checked_address
from fedekd.flower.setup.keys import read_node_key

WAIT = 10.0  # seconds for the server to answer
AHEAD, BEHIND = 5.0, 305.0  # seconds a site's clock may differ from the server's before Flower refuses its signature


class NotChecked(FedekdError):
    """It could not be looked at."""


class Connection:
    def __init__(self, site: SiteSettings) -> None:
        self.site = site
        self.works = False
        self.ahead: float | None = None

    def check(self) -> str:
        site = self.site
        host, port = checked_address(site.server, "server")
        server = http.client.HTTPSConnection(host, port, timeout=WAIT, context=self._tls())
        try:
            server.request("HEAD", "/health")
            answer = server.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise FedekdError(
                f"{site.server} shows a certificate that {site.ca} does not vouch for ({error.verify_message}); "
                "compare ca.crt with the server's administrator"
            ) from None
        except ssl.SSLError as error:
            raise FedekdError(f"{site.server} does not speak TLS ({error.reason}); check `server`") from None
        except socket.gaierror as error:
            raise FedekdError(
                f"the host of {site.server} is not known here ({error.strerror}); check `server`"
            ) from None
        except OSError as error:  # which before the server is started is no fault
            raise NotChecked(
                f"no answer from {site.server} ({error.strerror or error or type(error).__name__}); check again when "
                "the server runs, and if it does, the address and the firewall"
            ) from None
        except http.client.HTTPException as error:
            raise FedekdError(f"{site.server} does not speak HTTP ({type(error).__name__}); check `server`") from None
        finally:
            server.close()
        if date := answer.getheader("Date"):
            self.ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
        if answer.status != 200:
            raise FedekdError(f"{site.server} answers {answer.status}; it is no SuperLink: check `server`")
        self.works = True
        return f"{site.server} answers, and its certificate is signed by {site.ca.name}"

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self.site.ca))
        except (OSError, ssl.SSLError):
            raise NotChecked(f"it needs the certificate {self.site.ca}") from None

    def clock(self) -> str:
        """The server's time is known to the second."""
        if self.ahead is None:
            raise NotChecked("it is compared with the server's, which does not answer")
        if self.ahead > AHEAD or self.ahead < -BEHIND:
            word = "ahead of" if self.ahead > 0 else "behind"
            raise FedekdError(
                f"this clock is {abs(self.ahead):.0f} s {word} the server's, whose signature check allows "
                f"{AHEAD:.0f} s ahead and {BEHIND:.0f} s behind; set it by NTP"
            )
        return f"within {max(1, round(abs(self.ahead)))} s of the server's"

    def known(self) -> str:
        """Whether the server knows the site's key.

        The site asks, signed, to be activated with a heartbeat of 0 s. The server looks for the key first (412: it has
        none such), and then refuses the heartbeat (400), so that nothing changes there in either case.
        """
        if not self.works:
            raise NotChecked("the server has to answer for that")
        try:
            key = read_node_key(self.site.key)
        except FedekdError:
            raise NotChecked("the key cannot be read") from None
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        site, public = self.site, key.public_key()
        signing = [NodeAuthHttpInterceptor(key, public)]
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=0)
        try:
            with FleetHttpClient(
                f"https://{site.server}", interceptors=signing, verify=self._tls(), timeout=WAIT
            ) as client:
                client.ActivateNode(request)
            status = 200
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
        except (httpx.HTTPError, ValueError) as error:
            raise NotChecked(f"{site.server} broke off ({error or type(error).__name__})") from None
        if status == 412:
            raise FedekdError(
                f"the server does not know this site's key; send {site.key}.pub to its administrator, who puts it "
                "into the server's `nodes` folder (if it was taken out of there, make a new one with `fedekd site key` "
                "first)"
            )
        if status == 401:
            raise NotChecked(f"{site.server} refuses every signature from this machine; is its clock right?")
        if status != 400:
            raise NotChecked(f"{site.server} answers {status}, for another reason; is its Flower of another version?")
        return "the server knows this site's key"
