"""The curves of the trainings that the model came from, which the page draws."""

from fastapi import APIRouter

from launch.service import bodies
from launch.service.error_replies import ErrorReply, documented
from launch.service.json_reply import JsonReply
from launch.service.session import Opened

router = APIRouter(tags=["Kennel"], responses=documented(ErrorReply))


@router.get("/curves", responses={200: {"model": bodies.CurvesReply}})
async def curves(session: Opened) -> JsonReply:
    """Loss, learning rate, speed and evaluations over the steps of each training of the run.

    A curve has up to 300 points, among them the first, the last, the lowest and the highest.
    """
    found = session.service.curves()
    return JsonReply(
        {
            "version": session.facts.version,
            "trainings": found.trainings,
            "unread": found.unread,
            "left_out": found.left_out,
        }
    )
